// Package setup_test tests what make does before it builds anything: packages that are
// missing are installed or named, and what needs root takes sudo.
package setup_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// nobody is who the commands run as where the test is root.
const nobody = 65534

// machine is a folder that has all programs there are, and a checkout.
type machine struct {
	t    *testing.T
	bin  string
	home string
	user uint32
}

// newMachine returns a machine with the programs that the scripts are written in, and who is
// logged in: root, or somebody else.
func newMachine(t *testing.T, asRoot bool) *machine {
	t.Helper()
	m := &machine{t: t, home: t.TempDir(), user: uint32(os.Geteuid())}
	switch {
	case asRoot && m.user != 0:
		t.Skip("needs root")
	case !asRoot && m.user == 0:
		m.user = nobody
	}
	// The parents of a test's folder are the tester's alone.
	for dir := m.home; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.bin = filepath.Join(m.home, "path")
	for _, dir := range []string{m.bin, filepath.Join(m.home, "tools", "setup")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"elevate": "tools/setup/elevate", "install": "tools/setup/install", "../../Makefile": "Makefile"} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		m.write(to, string(content))
	}
	m.has("bash", "sh", "env", "id", "dirname", "make", "true", "getent", "cut", "find")
	return m
}

// has puts programs of the tester's machine on the path.
func (m *machine) has(programs ...string) {
	m.t.Helper()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			m.t.Skipf("needs %s", name)
		}
		if err := os.Symlink(path, filepath.Join(m.bin, name)); err != nil {
			m.t.Fatal(err)
		}
	}
}

// script puts a program of the test's own on the path.
func (m *machine) script(name, text string) {
	m.t.Helper()
	m.write(filepath.Join("path", name), "#!/bin/sh\n"+text+"\n")
}

// write writes a program, whose path is relative to the checkout.
func (m *machine) write(path, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.home, path), []byte(content), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// run runs a command in the checkout and returns what it has written and whether it ended
// well.
func (m *machine) run(command ...string) (output string, ok bool) {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(m.bin, command[0]), command[1:]...)
	if strings.Contains(command[0], "/") {
		cmd = exec.Command(filepath.Join(m.home, command[0]), command[1:]...)
	}
	cmd.Dir = m.home
	cmd.Env = []string{"PATH=" + m.bin, "HOME=" + m.home}
	if int(m.user) != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: m.user, Gid: m.user}}
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return string(out), err == nil
}

// make runs make with nothing on the path but what the machine has.
func (m *machine) make(target string) (output string, ok bool) {
	m.t.Helper()
	return m.run("make", "PATH="+m.bin, target)
}

// Targets of the Makefile that run nothing as root. Those of packagesAlone install packages.
var (
	withoutRoot   = []string{"help", "build", "clean", "image-root"}
	packagesAlone = []string{"setup", "generate", "check-generate", "fmt", "lint", "test-kernels"}
)

// targets returns the targets of the Makefile that it tells people of.
func (m *machine) targets() (names []string) {
	m.t.Helper()
	makefile, err := os.ReadFile(filepath.Join(m.home, "Makefile"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, target := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.* ## `).FindAllSubmatch(makefile, -1) {
		names = append(names, string(target[1]))
	}
	if len(names) < 20 {
		m.t.Fatalf("the Makefile has the targets %v", names)
	}
	return names
}

// TestNoSudo: for who is not root and has no sudo, each target that needs root says so before
// it does anything, and how to become root; whether or not it lacks packages.
func TestNoSudo(t *testing.T) {
	m := newMachine(t, false)
	m.script("apt-get", "echo nothing is to be installed; exit 1")
	m.script("go", "echo nothing is to be built; exit 1")
	refused := func(target string) {
		t.Helper()
		output, ok := m.make(target)
		if ok || !strings.Contains(output, "needs root, and there is no sudo") || !strings.Contains(output, "su -c 'make ") ||
			strings.Contains(output, "nothing is to be") {
			t.Errorf("make %s, ended well %v, says:\n%s", target, ok, output)
		}
	}
	needRoot := slices.DeleteFunc(m.targets(), func(name string) bool { return slices.Contains(withoutRoot, name) })
	for _, target := range needRoot {
		refused(target)
	}
	m.write("tools/setup/install", "#!/bin/sh\n") // as where nothing is missing
	for _, target := range needRoot {
		if !slices.Contains(packagesAlone, target) {
			refused(target)
		}
	}
}

// TestRootWithoutSudo: root needs no sudo.
func TestRootWithoutSudo(t *testing.T) {
	m := newMachine(t, true)
	if output, ok := m.make("root"); !ok {
		t.Errorf("make root:\n%s", output)
	}
	if output, ok := m.run("tools/setup/elevate", "id", "-u"); !ok || output != "0\n" {
		t.Errorf("elevate, ended well %v, says %q", ok, output)
	}
	m.has("flock")
	m.script("apt-get", `echo "apt-get $*"; exit 7`)
	if output, ok := m.run("tools/setup/install", "demo"); ok || !strings.Contains(output, "missing: iproute2 curl python3\napt-get ") {
		t.Errorf("install, ended well %v, says:\n%s", ok, output)
	}
}

// TestSudo: what needs root runs by sudo, with the user's path and Beeline's variables, and its
// exit status is that of the command.
func TestSudo(t *testing.T) {
	m := newMachine(t, false)
	m.script("sudo", `test "$1" = --set-home && shift && exec "$@"`)
	output, ok := m.run("env", "BEELINE_X=of the user", "tools/setup/elevate", "sh", "-c", `echo "$BEELINE_X, $PATH"`)
	if want := "of the user, " + m.bin + "\n"; !ok || output != want {
		t.Errorf("elevate, ended well %v, says %q, want %q", ok, output, want)
	}
	if output, ok := m.run("tools/setup/elevate", "sh", "-c", "exit 3"); ok {
		t.Errorf("a command that fails ends well: %s", output)
	}
	if output, ok := m.make("root"); !ok {
		t.Errorf("make root:\n%s", output)
	}
}

// goCall is a call of go that runs a program: what runs it, and the program or the packages.
var goCall = regexp.MustCompile(`(?m)\bgo (?:run|test)\b.*`)

// TestProgramsRunAsRoot: of targets that need root, all programs are run as root, so that none
// leaves out what needs it; but for those of the emulated kernels, which do not.
func TestProgramsRunAsRoot(t *testing.T) {
	m := newMachine(t, false)
	m.script("sudo", "")
	found := 0
	for _, target := range m.targets() {
		commands, ok := m.run("make", "PATH="+m.bin, "-n", target)
		if !ok {
			t.Fatalf("make -n %s:\n%s", target, commands)
		}
		if !strings.Contains(commands, "/tools/setup/elevate true") {
			continue
		}
		for _, call := range goCall.FindAllString(commands, -1) {
			found++
			if !strings.Contains(call, "-exec") && !strings.Contains(call, "./tools/kernels") {
				t.Errorf("make %s runs as the user: %s", target, call)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d programs found", found)
	}
}

// TestWhatRootMakes: what a command has made as root in the checkout is the user's.
func TestWhatRootMakes(t *testing.T) {
	m := newMachine(t, false)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make what is root's")
	}
	m.has("chown")
	m.script("sudo", `test "$1" != --set-home || shift; echo "$@"`)
	for _, path := range []string{".cache/x", "bin/x", "pkg/model/testdata/fuzz/FuzzNames/x", "pkg/model/x", "tests/packets/testdata/fuzz/FuzzPrograms/x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(m.home, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		m.write(path, "")
	}
	output, ok := m.run("tools/setup/elevate", "true")
	if !ok {
		t.Errorf("elevate:\n%s", output)
	}
	for _, path := range []string{"/.cache", "/bin", "/pkg/model/testdata", "/tests/packets/testdata"} {
		if !regexp.MustCompile(`(?m)^chown --recursive .*` + path + `$`).MatchString(output) {
			t.Errorf("%s stays root's:\n%s", path, output)
		}
	}
}

// TestMissingPackages: a system without apt-get is told what to install; where all is there,
// nothing is done and no rights are needed.
func TestMissingPackages(t *testing.T) {
	m := newMachine(t, false)
	m.script("curl", "")
	output, ok := m.run("tools/setup/install", "demo")
	if ok || !strings.Contains(output, "missing: iproute2 python3\n") || !strings.Contains(output, "no apt-get") {
		t.Errorf("ended well %v, says:\n%s", ok, output)
	}
	m.script("ip", "")
	m.script("python3", "")
	if output, ok := m.run("tools/setup/install", "demo"); !ok || output != "" {
		t.Errorf("with all that is needed: ended well %v, says:\n%s", ok, output)
	}
}
