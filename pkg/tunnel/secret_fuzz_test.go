package tunnel

import (
	"bytes"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzSecrets: whatever a file of secrets holds, it is refused or has one or two of enough bytes, each a
// whole line of it, and an error has nothing of them.
func FuzzSecrets(f *testing.F) {
	for _, text := range []string{
		"", "\n\n", oldSecret, newSecret + "\n" + oldSecret + "\n", "  " + oldSecret + "\t\r\n\r\n", "too short\n" + oldSecret,
		oldSecret + "\n" + newSecret + "\n" + oldSecret, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\n", "\xef\xbb\xbf" + oldSecret,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var list Secrets
		var err error
		bounds.Check(t, len(text), func() { list, err = ParseSecrets(text) })
		if err != nil {
			for line := range bytes.Lines(text) {
				if line = bytes.TrimSpace(line); len(line) >= secretLeast && bytes.Contains([]byte(err.Error()), line) {
					t.Fatalf("the error tells a secret: %v", err)
				}
			}
			return
		}
		if len(list) < 1 || len(list) > secretsMost {
			t.Fatalf("%d secrets", len(list))
		}
		var lines []byte
		for _, s := range list {
			if len(s.text) < secretLeast {
				t.Fatalf("a secret has %d bytes", len(s.text))
			}
			lines = append(append(lines, s.text...), '\n')
		}
		if again, err := ParseSecrets(lines); err != nil || !slices.Equal(again, list) {
			t.Fatalf("written again they are other ones, or %v", err)
		}
	})
}
