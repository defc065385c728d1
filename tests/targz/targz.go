// Package targz reads archives that a program under test has written.
package targz

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"testing"
)

// Files returns the files of a tar.gz archive by their names.
func Files(t testing.TB, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}
