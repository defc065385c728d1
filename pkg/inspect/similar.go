package inspect

import (
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// maxSimilar bounds the names that are offered.
const maxSimilar = 5

// similar returns those of names, in their order, that may have been meant: of
// the same name elsewhere, a part of one another, or two letters apart.
func similar(want model.Name, names []model.Name) []model.Name {
	var list []model.Name
	for _, n := range names {
		if len(list) == maxSimilar {
			break
		}
		if alike(want, n) {
			list = append(list, n)
		}
	}
	return list
}

func alike(a, b model.Name) bool {
	if a.Name == b.Name {
		return true
	}
	part := len(a.Name) >= 3 && strings.Contains(b.Name, a.Name) ||
		len(b.Name) >= 3 && strings.Contains(a.Name, b.Name)
	return a.Namespace == b.Namespace && part || distance(a.String(), b.String()) <= 2
}

// distance is the Levenshtein distance: how many bytes to change, add or remove.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func join(names []model.Name) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = n.String()
	}
	return strings.Join(words, ", ")
}
