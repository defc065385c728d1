package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestClosureTranslated: apt, which answers in the user's language, is asked in English.
func TestClosureTranslated(t *testing.T) {
	dir := t.TempDir()
	stub := `#!/bin/sh
depends="Hängt ab von"
test "$LC_ALL" != C || depends=Depends
for package; do :; done
echo "$package"
test "$package" != linux-image-amd64 || echo "  $depends: linux-image-6.1.0-1-amd64"
`
	if err := os.WriteFile(filepath.Join(dir, "apt-cache"), []byte(stub), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	a := &apt{dir: dir, conf: "apt.conf"}
	want := []string{"linux-image-amd64", "linux-image-6.1.0-1-amd64"}
	if got, err := a.closure(t.Context(), want[0], kernelDepends); err != nil || !slices.Equal(got, want) {
		t.Errorf("the closure is %q, %v, want %q", got, err, want)
	}
}
