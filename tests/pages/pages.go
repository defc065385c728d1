// Package pages reads the documents of the repository for tests that compare them with what there
// is.
package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// All returns the texts of the repository by path. Tests are two folders below its root.
func All(t testing.TB) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "../.." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	span      = regexp.MustCompile("`([^`\n]+(?:\n[^`\n]+)?)`")
	indented  = regexp.MustCompile(`(?m)^    (\S.*)$`)
	continued = regexp.MustCompile(`\\\n +`)
	gap       = regexp.MustCompile(`  +|#`)
)

// Commands returns the commands that a document shows: in code spans, and in indented lines up
// to the gap before what is said about them.
func Commands(text string) (all []string) {
	for _, m := range span.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.Join(strings.Fields(m[1]), " "))
	}
	for _, m := range indented.FindAllStringSubmatch(continued.ReplaceAllString(text, ""), -1) {
		all = append(all, gap.Split(m[1], 2)[0])
	}
	return all
}

// Words splits a command as a shell does, with quotes but no variables. What follows a redirection
// or a pipe is left out.
func Words(command string) (words []string) {
	var word strings.Builder
	begun, quote := false, rune(0)
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range command {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			end()
		case quote == 0 && (r == '|' || r == '>'):
			end()
			return words
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return words
}
