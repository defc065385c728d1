package cli_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// untar returns the files of a report by their names.
func untar(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	check(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	check(t, err)
	files := make(map[string]string)
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check(t, err)
		content, err := io.ReadAll(archive)
		check(t, err)
		files[path.Base(header.Name)] = string(content)
	}
}

// TestReport: the archive has what the other commands print and what the kernel says of this
// machine, flows only when asked for, and is no other user's.
func TestReport(t *testing.T) {
	bpffs := newDatapath(t)
	const client = "198.51.100.9" // of flows alone
	for _, flows := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "report.tar.gz")
		args := []string{"--bpffs", bpffs, "report", file}
		if flows {
			args = append(args, "--flows")
		}
		if out, errs, code := run(args...); code != cli.ExitOK || out != file+"\n" {
			t.Fatalf("exit code %d, %q, %q", code, out, errs)
		}
		info, err := os.Stat(file)
		check(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("its mode is %s", info.Mode())
		}
		files := untar(t, file)
		for name, command := range map[string]string{
			"services.json": "service list -o json", "backends.txt": "backend list -o wide", "frontends.txt": "frontend list -o wide",
			"nodes.json": "node list -o json", "version.txt": "version",
		} {
			if want, _, _ := run(append([]string{"--bpffs", bpffs}, strings.Fields(command)...)...); files[name] != want {
				t.Errorf("%s has\n%s\nwant\n%s", name, files[name], want)
			}
		}
		for name, want := range map[string]string{
			"status.txt": "node-a", "status.json": `"node": "node-a"`, "kernel.txt": "Linux version", "mounts.txt": " - bpf ",
			"sysctl.txt": "net/ipv4/ip_forward = ", "network.txt": "127.0.0.1/8",
		} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
		if text, missing := files["errors.txt"]; missing {
			t.Errorf("could not be read: %s", text)
		}
		all := strings.Join([]string{files["status.txt"], files["services.json"], files["flows.txt"], files["flows.json"]}, "")
		if strings.Contains(all, client) != flows {
			t.Errorf("asked for flows: %t, a client is named: %t", flows, !flows)
		}
		if _, errs, code := run(args...); code != cli.ExitFailure || !strings.Contains(errs, "file exists") {
			t.Errorf("a file that exists: exit code %d, %q", code, errs)
		}
	}
}

// TestReportWithoutDatapath: what there is is written, and what is missing is named.
func TestReportWithoutDatapath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	if _, errs, code := run("--bpffs", t.TempDir(), "report", file); code != cli.ExitOK {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	files := untar(t, file)
	if !strings.Contains(files["errors.txt"], "status.txt: no datapath") || !strings.Contains(files["kernel.txt"], "Linux") {
		t.Errorf("errors.txt has %q", files["errors.txt"])
	}
}
