package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestManifestsHaveTheWebServers(t *testing.T) {
	for _, w := range webServers {
		dir := t.TempDir()
		if err := copyManifests(filepath.Join(checkout, "examples"), dir); err != nil {
			t.Fatal(err)
		}
		line := endpointLine(w.addr)
		if err := replaceInManifests(dir, line, line+terminating); err != nil {
			t.Error(err)
		}
		if err := replaceInManifests(dir, line+terminating, ""); err != nil {
			t.Error(err)
		}
		if err := replaceInManifests(dir, line, ""); err == nil {
			t.Errorf("%s is still in a manifest", w.addr)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestCopyManifestsWantsSome(t *testing.T) {
	if err := copyManifests(t.TempDir(), t.TempDir()); err == nil {
		t.Error("an empty folder is no error")
	}
}

func TestReplaceLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "one two", "b.yaml": "three"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(filepath.Join(dir, "b.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := replaceInManifests(dir, "two", "2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "a.yaml")); string(got) != "one 2" {
		t.Errorf("a.yaml: %q", got)
	}
	if after, err := os.Stat(filepath.Join(dir, "b.yaml")); err != nil || !os.SameFile(before, after) {
		t.Errorf("b.yaml was replaced: %v", err)
	}
}
