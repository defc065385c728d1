package chart_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// The release that tests install. Its full name is the chart's.
const (
	release   = "beeline"
	namespace = "kube-system"
)

// helm is the program, with settings of its own.
type helm struct {
	t      *testing.T
	binary string
	env    []string
}

// newHelm returns helm for the cluster of a kubeconfig, or for none when it is empty.
func newHelm(t *testing.T, kubeconfig string) *helm {
	t.Helper()
	tier.Slow(t, "needs helm, which takes minutes to build")
	dir, err := programs.Helm.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return &helm{t: t, binary: filepath.Join(dir, "helm"), env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + kubeconfig, "HELM_NAMESPACE=" + namespace,
	}}
}

// chartDir returns the folder of the chart.
func chartDir(t *testing.T) string {
	t.Helper()
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "charts", "beeline")
}

// run runs helm and returns what it wrote to standard output. The error has what it
// wrote to standard error.
func (h *helm) run(args ...string) (string, error) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.binary, args...)
	cmd.Env = h.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// must runs helm, which has to succeed.
func (h *helm) must(args ...string) string {
	h.t.Helper()
	out, err := h.run(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// values writes a file of values and returns the flag that names it.
func values(t *testing.T, yaml string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--values=" + path
}

// template renders the chart without a cluster.
func (h *helm) template(yaml string) (string, error) {
	h.t.Helper()
	return h.run("template", release, chartDir(h.t), values(h.t, yaml))
}

// onNode is what has to be given where no cluster can be asked.
const onNode = "apiServer: {host: 192.0.2.1}\n"
