package chart_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/pages"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// documented is a command that a document shows, without the name of its program.
type documented struct {
	path    string
	command string
	args    []string
}

// documentedOf returns the commands of a program in documents that have at least so many arguments.
func documentedOf(t *testing.T, program string, least int) (list []documented) {
	t.Helper()
	for path, text := range pages.All(t) {
		for _, command := range pages.Commands(text) {
			if words := pages.Words(command); len(words) > least && words[0] == program {
				list = append(list, documented{path, command, words[1:]})
			}
		}
	}
	return list
}

// documentedHelm returns helm's commands in documents, whose names of folders are those from the
// root of the repository.
func documentedHelm(t *testing.T) []documented {
	t.Helper()
	list := documentedOf(t, "helm", 2)
	for _, d := range list {
		for i, arg := range d.args {
			if arg == "charts/beeline" {
				d.args[i] = chartDir(t)
			}
		}
	}
	return list
}

// set returns the flags that set values.
func (d documented) set() (flags []string) {
	for i, arg := range d.args {
		switch {
		case arg == "--set" && i+1 < len(d.args):
			flags = append(flags, arg, d.args[i+1])
		case strings.HasPrefix(arg, "--set="):
			flags = append(flags, arg)
		}
	}
	return flags
}

// TestDocumentedCommands: helm has the commands that documents show with their flags, of the
// release and the chart that there are, and the chart takes the values.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	list := documentedHelm(t)
	for _, d := range list {
		t.Run(filepath.Base(d.path)+" "+d.args[0], func(t *testing.T) {
			if _, err := h.run(append(slices.Clone(d.args), "--help")...); err != nil {
				t.Errorf("%s: %s: %v", d.path, d.command, err)
			}
			if !slices.Contains([]string{"install", "upgrade", "uninstall", "test"}, d.args[0]) {
				t.Errorf("%s: %s: what is tested of this command?", d.path, d.command)
			}
			if d.args[1] != release {
				t.Errorf("%s: %s: the release is %q, want %q", d.path, d.command, d.args[1], release)
			}
			if chart := d.args[2]; (d.args[0] == "install" || d.args[0] == "upgrade") && chart != chartDir(t) {
				t.Errorf("%s: %s: the chart is %q", d.path, d.command, chart)
			}
			args := append([]string{"template", release, chartDir(t), values(t, onNode)}, d.set()...)
			if _, err := h.run(args...); err != nil {
				t.Errorf("%s: %s: %v", d.path, d.command, err)
			}
		})
	}
	if len(list) < 8 {
		t.Errorf("found %d commands only", len(list))
	}
}

// TestDocumentedKubectl: kubectl has the commands that documents show, with their flags. With
// --help it reads all of them and asks no server, so what a server would say of the arguments is
// left to TestKubectl in tests/docs, and its plugin to TestCommands.
func TestDocumentedKubectl(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "needs kubectl, which takes minutes to build")
	dir, err := programs.Kubectl.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	list := documentedOf(t, "kubectl", 1)
	for _, d := range list {
		args := d.args
		if strings.HasPrefix(d.command, "kubectl beeline") { // or what it says
			continue
		}
		if i := slices.Index(args, "--"); i >= 0 {
			args = args[:i] // what runs in a pod
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "kubectl"), append(args, "--help")...)
		cmd.Env = []string{"HOME=" + home}
		out, err := cmd.CombinedOutput()
		_, usage, _ := strings.Cut(string(out), "\nUsage:\n  kubectl ")
		// A group of commands shows its help for any word.
		if err != nil || strings.Contains(usage, "SUBCOMMAND") {
			t.Errorf("%s: %s: %v\n%s", d.path, d.command, err, out)
		}
	}
	if len(list) < 15 {
		t.Errorf("found %d commands only", len(list))
	}
}
