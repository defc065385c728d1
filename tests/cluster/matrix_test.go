package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/programs"
)

// TestMatrix: an outcome takes the place of the former one, which a skip does not, and what was not tried says so.
func TestMatrix(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{matrixPage: "# Page\n\n" + matrixBegin + matrixEnd + "\nThe rest.\n", matrixFile: "[]"} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []cell{
		{Fabric: fabricFlannel, Check: "e2e", Outcome: outcomeFailed, Why: "a | b", Version: "v1", Date: "2026-01-01"},
		{Fabric: fabricCalico, Check: policyTask, Outcome: outcomeSkipped, Why: "no checkout", Date: "2026-01-02"},
		{Fabric: fabricFlannel, Check: "e2e", Outcome: outcomePassed, Counts: "34 passed", Version: "v2", Date: "2026-01-03"},
		{Fabric: fabricFlannel, Check: "e2e", Outcome: outcomeSkipped, Why: "no flannel", Date: "2026-01-04"},
		{Fabric: fabricKindnet, Check: "e2e", Outcome: outcomeSkipped, Why: "no checkout", Date: "2026-01-04"},
		{Fabric: fabricKindnet, Check: "e2e", Outcome: outcomeSkipped, Why: "no commit", Date: "2026-01-05"},
		{Fabric: fabricKubeRouter, Check: "e2e", Outcome: outcomeFailed, Why: "a pod", Version: "v3", Date: "2026-01-05"},
		{Fabric: fabricKubeRouter, Check: "e2e", Outcome: outcomeSkipped, Why: "no kube-router", Version: "v3", Date: "2026-01-06"},
	} {
		if err := recordCell(root, c); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(filepath.Join(root, matrixPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Page\n", "\nThe rest.\n",
		"| `flannel` | v2 | pass: 34 passed (2026-01-03) | not run | not run | not run | not run | - |\n",
		"| `routes` |  | not run | not run | not run | not run | - | - |\n",
		"| `kube-router` | v3 | fail: a pod (2026-01-05) |",
		"| `kindnet` |  | skip: no commit (2026-01-05) |",
		"| skip: no checkout (2026-01-02) |\n",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("want %q in\n%s", want, page)
		}
	}
	if strings.Contains(string(page), "2026-01-01") {
		t.Errorf("the former outcome is there:\n%s", page)
	}
}

// TestMatrixPage: the table of the documentation is that of the last runs.
func TestMatrixPage(t *testing.T) {
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	cells, err := readCells(root)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, matrixPage))
	if err != nil {
		t.Fatal(err)
	}
	want, err := withMatrix(page, cells)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Errorf("%s has another table than make cluster-matrix writes of %s", matrixPage, matrixFile)
	}
}
