package tier

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// samples are subtests with names of all kinds; those that are true leave something out.
var samples = map[string]bool{
	"XDP off":             true,
	"XDP off, too":        false,
	"tcx rp_filter=1":     false,
	"tcx rp_filter=2":     true,
	"[fd00::1]:80 (a|b)$": true,
	"fd00::1:80 a":        false,
	"10.0.0.1/32":         true,
	"10.0.0.1/3":          false,
	"10x0x0x1/32":         false,
}

// samplesEnv is set when TestLeft runs TestSamples.
const samplesEnv = "BEELINE_TIER_SAMPLES"

// TestSamples is what TestLeft runs.
func TestSamples(t *testing.T) {
	if os.Getenv(samplesEnv) == "" {
		t.Skip("for TestLeft")
	}
	for _, deep := range []bool{false, true} {
		for name, leaves := range samples {
			t.Run(name, func(t *testing.T) {
				if leaves && !deep {
					Slow(t, "it does")
				}
				if deep {
					t.Run("below", func(t *testing.T) { Variant(t, !leaves) })
				}
			})
		}
	}
}

// TestLeft: what is left of a test is what runs by the patterns that it adds, with the subtests above,
// and nothing else.
func TestLeft(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	outcomes(t, "^TestSamples$", LeftEnv+"="+left, AllEnv+"=")
	lines, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for line := range strings.Lines(string(lines)) {
		in, pattern, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if in != folder {
			t.Errorf("line %q is of another folder than %s", line, folder)
		}
		patterns = append(patterns, pattern)
	}
	want := []string{"TestSamples"}
	for name, leaves := range samples {
		if name = "TestSamples/" + strings.ReplaceAll(name, " ", "_"); leaves {
			want = append(want, name, name+"#01", name+"#01/below")
		}
	}
	slices.Sort(want)
	if got := outcomes(t, strings.Join(patterns, "|"), AllEnv+"=1"); !slices.Equal(got, want) {
		t.Errorf("by %q run\n%q, want\n%q", patterns, got, want)
	}
}

// outcomes runs tests of this binary, and returns the names of those that passed.
func outcomes(t *testing.T, run string, env ...string) (passed []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", run)
	cmd.Env = append(append(os.Environ(), samplesEnv+"=1"), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- PASS: "); ok {
			passed = append(passed, name[:strings.LastIndex(name, " (")])
		}
	}
	slices.Sort(passed)
	return passed
}
