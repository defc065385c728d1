package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func TestCPIOWriter(t *testing.T) {
	var archive bytes.Buffer
	w := newCPIOWriter(&archive)
	w.device("/dev/console", 5, 1)
	w.file("/a/b/one", []byte("12345"))
	w.file("/a/b/two", nil)
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/dev 40755 0,0 \"\"",
		"/dev/console 20600 5,1 \"\"",
		"/a 40755 0,0 \"\"",
		"/a/b 40755 0,0 \"\"",
		"/a/b/one 100755 0,0 \"12345\"",
		"/a/b/two 100755 0,0 \"\"",
		"TRAILER!!! 0 0,0 \"\"",
	}
	if got := readCPIO(t, archive.Bytes()); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the archive holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCPIOWriterKeepsFirstError(t *testing.T) {
	w := newCPIOWriter(failingWriter{})
	w.file("/one", []byte("1"))
	if err := w.close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v, want %v", err, errFull)
	}
}

var errFull = errors.New("full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }

// readCPIO lists the entries as the kernel reads them: a header of six digits and
// 13 fields of eight, the name with its zero byte, the data, both padded to four.
func readCPIO(t *testing.T, archive []byte) []string {
	t.Helper()
	var entries []string
	for pos := 0; pos < len(archive); {
		if string(archive[pos:pos+6]) != "070701" {
			t.Fatalf("no header at %d: %q", pos, archive[pos:pos+6])
		}
		var field [13]int
		for i := range field {
			start := pos + 6 + 8*i
			value, err := strconv.ParseInt(string(archive[start:start+8]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			field[i] = int(value)
		}
		mode, size, major, minor, nameSize := field[1], field[6], field[9], field[10], field[11]
		name := archive[pos+110 : pos+110+nameSize]
		pos += (110 + nameSize + 3) &^ 3
		data := archive[pos : pos+size]
		pos += (size + 3) &^ 3
		entries = append(entries, fmt.Sprintf("%s %o %d,%d %q",
			bytes.TrimSuffix(name, []byte{0}), mode, major, minor, data))
	}
	return entries
}
