package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/targz"
	"github.com/beeline-lb/beeline/tests/wait"
)

// untar returns the files of a report by their names.
func untar(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	check(t, err)
	defer f.Close()
	files := make(map[string]string)
	for name, content := range targz.Files(t, f) {
		files[path.Base(name)] = content
	}
	return files
}

// TestReport: the archive has what the other commands print and what the kernel says of this
// machine, flows with clients only when asked for, and is no other user's.
func TestReport(t *testing.T) {
	bpffs := newDatapath(t)
	const client = "198.51.100.9" // of flows alone
	for _, clients := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "report.tar.gz")
		args := []string{"--bpffs", bpffs, "report", "-o", file}
		if clients {
			args = append(args, "--clients")
		}
		out, errs, code := run(args...)
		if code != cli.ExitOK || out != file+"\n" {
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
			"sysctl.txt": "net/ipv4/ip_forward = ", "network.txt": "127.0.0.1/8", "routes.txt": "127.0.0.0/8", "flows.txt": "shop/web",
			"index.txt": "about node node-a at 2026-03-01T12:00:00Z.", "kube-proxy.txt": "kube-proxy",
		} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
		if all := files["status.txt"] + files["services.json"] + files["flows.txt"]; strings.Contains(all, client) != clients {
			t.Errorf("asked for clients: %t, a client is named: %t\n%s", clients, !clients, files["flows.txt"])
		}
		index := files["index.txt"]
		for _, name := range []string{"flows.txt", "events.jsonl", "nodes.json"} {
			if strings.Index(index, "\n"+name) > strings.Index(index, "\nservices.txt") {
				t.Errorf("the tables, which may be large, are read before %s:\n%s", name, index)
			}
		}
		// No agent has noted anything in this datapath.
		const missing = "config.yaml, health.txt, configz.json, metrics.txt: the agent has not noted its configuration\n"
		if !strings.Contains(errs, missing) || strings.Count(files["index.txt"], "FAILED: the agent has not noted its configuration\n") != 4 {
			t.Errorf("what is missing is not named: %q\n%s", errs, files["index.txt"])
		}
		if _, errs, code := run(args...); code != cli.ExitFailure || !strings.Contains(errs, "file exists") {
			t.Errorf("a file that exists: exit code %d, %q", code, errs)
		}
	}
}

// TestReportWithoutDatapath: what there is is written, by a name that says of where and when, and
// what is missing is named.
func TestReportWithoutDatapath(t *testing.T) {
	t.Chdir(t.TempDir())
	host, err := os.Hostname()
	check(t, err)
	file := "beeline-report-" + host + "-20260301T120000Z.tar.gz"
	if out, errs, code := run("--bpffs", t.TempDir(), "report"); code != cli.ExitOK || out != file+"\n" ||
		!strings.HasPrefix(errs, "beeline: not in the report, or not whole: status.txt, status.json, verify.txt, ") {
		t.Fatalf("exit code %d, %q, %q", code, out, errs)
	}
	files := untar(t, file)
	if !strings.Contains(files["index.txt"], "FAILED: no datapath") || !strings.Contains(files["kernel.txt"], "Linux") {
		t.Errorf("index.txt has %q", files["index.txt"])
	}
	out, _, code := run("--bpffs", t.TempDir(), "report", "-o", "-")
	check(t, os.WriteFile("stdout.tar.gz", []byte(out), 0o600))
	if files := untar(t, "stdout.tar.gz"); code != cli.ExitOK || !strings.Contains(files["kernel.txt"], "Linux") {
		t.Errorf("to standard output: exit code %d, %d files", code, len(files))
	}
	if _, errs, code := run("report", "-o", "/nowhere/report.tar.gz"); code != cli.ExitFailure || errs == "" {
		t.Errorf("where nothing can be written: exit code %d, %q", code, errs)
	}
	if _, _, code := run("report", "name"); code != cli.ExitUsage {
		t.Errorf("with an argument: exit code %d", code)
	}
}

// TestReportSignals: a signal leaves nothing behind, and one that kills no file of the archive's name: who
// finds that has all of it.
func TestReportSignals(t *testing.T) {
	bpffs := newDatapath(t)
	for _, end := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGKILL} {
		dir := t.TempDir()
		files := func() (names []string) {
			entries, err := os.ReadDir(dir)
			check(t, err)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		}
		file := filepath.Join(dir, "report.tar.gz")
		wait.Until(t, "a signal before the archive is whole", func() bool {
			check(t, os.RemoveAll(file))
			cmd := asCommand("--bpffs", bpffs, "report", "-o", file)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			check(t, cmd.Start())
			wait.Until(t, "a file", func() bool { return len(files()) > 0 })
			check(t, cmd.Process.Signal(end))
			if cmd.Wait() == nil {
				return false // the signal was late
			}
			if slices.Contains(files(), "report.tar.gz") {
				untar(t, file)
				return false // late, too: between the archive's name and the end
			}
			if end != syscall.SIGKILL && (len(files()) > 0 || cmd.ProcessState.ExitCode() != cli.ExitFailure || errs.Len() == 0) {
				t.Errorf("%v left %q, exit code %d, said %q", end, files(), cmd.ProcessState.ExitCode(), &errs)
			}
			return true
		})
	}
}

// TestReportStalled: a second signal ends a report that nobody reads.
func TestReportStalled(t *testing.T) {
	cmd := asCommand("--bpffs", newDatapath(t), "report", "-o", "-")
	out, in, err := os.Pipe()
	check(t, err)
	defer out.Close()
	size, err := unix.FcntlInt(in.Fd(), unix.F_SETPIPE_SZ, 4096)
	check(t, err)
	_, err = in.Write(make([]byte, size))
	check(t, err)
	cmd.Stdout = in
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // ended long ago, unless the test has failed
	check(t, in.Close())
	wait.Until(t, "a write to the full pipe", func() bool {
		calls, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
		check(t, err)
		return slices.ContainsFunc(calls, func(file string) bool {
			call, _ := os.ReadFile(file) // the thread may have ended
			return strings.HasPrefix(string(call), fmt.Sprintf("%d 0x1 ", unix.SYS_WRITE))
		})
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	wait.Until(t, "a signal that ends it", func() bool {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		return len(ended) > 0
	})
	<-ended
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
}

// TestReportReplacesNothing: a file of the archive's name that is made meanwhile stays.
func TestReportReplacesNothing(t *testing.T) {
	bpffs := newDatapath(t)
	wait.Until(t, "a file made before the archive is whole", func() bool {
		dir := t.TempDir()
		file := filepath.Join(dir, "report.tar.gz")
		cmd := asCommand("--bpffs", bpffs, "report", "-o", file)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		check(t, cmd.Start())
		wait.Until(t, "the archive is begun", func() bool {
			entries, err := os.ReadDir(dir)
			check(t, err)
			return len(entries) > 0
		})
		other, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o600)
		ended := cmd.Wait()
		if err != nil {
			return false // it was whole already
		}
		check(t, other.Close())
		info, err := os.Stat(file)
		check(t, err)
		entries, err := os.ReadDir(dir)
		check(t, err)
		if ended == nil || info.Size() > 0 || len(entries) != 1 || !strings.Contains(errs.String(), file+": file exists") {
			t.Errorf("ended with %v, %d files, that one of %d bytes, said %q", ended, len(entries), info.Size(), &errs)
		}
		return true
	})
}

// TestReportAsNobody: who is not root gets what everybody may read.
func TestReportAsNobody(t *testing.T) {
	errs, code := runAsNobody(t, "--bpffs", newDatapath(t), "report", "-o", "-")
	if code != cli.ExitOK || !strings.Contains(errs, "status.txt, ") || strings.Contains(errs, "kernel.txt") || strings.Contains(errs, "network.txt") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}
