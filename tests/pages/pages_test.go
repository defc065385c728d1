package pages

import (
	"slices"
	"testing"
)

func TestCommands(t *testing.T) {
	const text = "Ask `kubectl get\npods`, or\n\n" +
		"    helm upgrade beeline \\\n        --set a=b   # once\n    beeline status    counters\n"
	want := []string{"kubectl get pods", "helm upgrade beeline --set a=b", "beeline status"}
	if got := Commands(text); !slices.Equal(got, want) {
		t.Errorf("commands are %q, want %q", got, want)
	}
}

func TestWords(t *testing.T) {
	want := []string{"kubectl", "patch", "-p", `{"a": "b"}`, ""}
	if got := Words(`kubectl patch -p '{"a": "b"}' "" | less > file`); !slices.Equal(got, want) {
		t.Errorf("words are %q, want %q", got, want)
	}
}
