package isolated

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestEnviron: nothing of the user's proxies and settings stays, all else does.
func TestEnviron(t *testing.T) {
	for _, name := range []string{"http_proxy", "HTTPS_PROXY", "no_proxy", "ALL_PROXY", "CURL_HOME", "HOME", "LC_ALL", "LANGUAGE", "BEELINE_X"} {
		t.Setenv(name, "the user's")
	}
	cmd := exec.Command("env")
	cmd.Env = Environ()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Split(string(out), "\n")
	for _, want := range []string{"BEELINE_X=the user's", "HOME=/nonexistent", "LC_ALL=C.UTF-8"} {
		if !slices.Contains(have, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "the user's"); n != 1 {
		t.Errorf("%d variables are the user's:\n%s", n, out)
	}
}
