// Package setup_test tests what make does before it builds anything: packages that are
// missing are installed or named, and what needs root takes sudo.
package setup_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/mounts"
	"github.com/beeline-lb/beeline/tests/wait"
)

// nobody is who the commands run as where the test is root.
const nobody = 65534

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // nobody uses what the tests make, whoever may use what root makes
	if os.Geteuid() == 0 {
		// In a mount namespace of their own: TMPDIR and the checkout may be where nobody cannot go.
		os.Setenv("GOTMPDIR", mounts.NamedNetns)
	}
	os.Exit(mounts.Main(m))
}

// machine is a folder that has all programs there are, and a checkout.
type machine struct {
	t    *testing.T
	bin  string
	home string
	user uint32
}

// policy is the file that keeps packages from starting services, in the checkout.
const policy = "policy-rc.d"

// newMachine returns a machine with the programs that the scripts are written in, and who is
// logged in: root, or somebody else.
func newMachine(t *testing.T, asRoot bool) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, home: filepath.Join(dir, "a user's home"), user: uint32(os.Geteuid())}
	switch {
	case asRoot && m.user != 0:
		t.Skip("needs root")
	case !asRoot && m.user == 0:
		m.user = nobody
	}
	// A test's folder, and the one around it that is made with it, are the tester's alone.
	for _, made := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.bin = filepath.Join(m.home, "path")
	for _, dir := range []string{m.bin, filepath.Join(m.home, "tools", "setup")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"elevate": "tools/setup/elevate", "git": "tools/setup/git", "install": "tools/setup/install", "../../Makefile": "Makefile"} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		m.write(to, string(content))
	}
	if err := os.Chown(m.home, int(m.user), int(m.user)); err != nil {
		t.Fatal(err)
	}
	m.has("bash", "sh", "env", "id", "dirname", "make", "true", "getent", "cut", "find", "flock", "stat", "mkdir",
		"cat", "chmod", "grep", "mktemp", "mv", "rm")
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
	out, err := m.command(command...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return string(out), err == nil
}

// command returns a command in the checkout.
func (m *machine) command(command ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.bin, command[0]), command[1:]...)
	if strings.Contains(command[0], "/") {
		cmd = exec.Command(filepath.Join(m.home, command[0]), command[1:]...)
	}
	cmd.Args[0] = command[0] // which make calls itself by
	cmd.Dir = m.home
	cmd.Env = []string{"PATH=" + m.bin, "HOME=" + m.home, "POLICY_RC_D=" + filepath.Join(m.home, policy), "SETUP_LOCK=" + filepath.Join(m.home, "lock"), "SSL_CERT_FILE=" + filepath.Join(m.home, "certificates")}
	if int(m.user) != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: m.user, Gid: m.user}}
	}
	return cmd
}

// make runs make with nothing on the path but what the machine has.
func (m *machine) make(target string) (output string, ok bool) {
	m.t.Helper()
	return m.run("make", "PATH="+m.bin, target)
}

// Targets of the Makefile that need no root; see TestClean. Those of packagesAlone install packages.
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
	m.script("apt-get", `echo "apt-get $*"; exit 7`)
	if output, ok := m.run("tools/setup/install", "demo"); ok || !strings.Contains(output, "missing: ca-certificates iproute2 curl python3\napt-get ") {
		t.Errorf("install, ended well %v, says:\n%s", ok, output)
	}
}

// TestLockedPackages: while another program holds apt's lock, it is tried again; another error ends
// the installation.
func TestLockedPackages(t *testing.T) {
	m := newMachine(t, true)
	m.script("sleep", "")
	for name, test := range map[string]struct {
		message string
		tries   int
	}{
		"locked": {"E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)", 3},
		"broken": {"E: No network", 1},
	} {
		m.write("tries", "")
		m.script("apt-get", `
echo x >>tries
echo "apt-get is asked"
test "$(echo $(cat tries))" = "x x x" && exit 7
echo "`+test.message+`" >&2
exit 100`)
		output, ok := m.run("tools/setup/install", "demo")
		if tries := strings.Count(output, "apt-get is asked"); ok || tries != test.tries || strings.Count(output, test.message) != min(tries, 2) {
			t.Errorf("%s: ended well %v after %d tries, says:\n%s", name, ok, tries, output)
		}
	}
}

// TestServices: packages may start no service while they are installed. The administrator's own policy
// comes back, also when installing fails.
func TestServices(t *testing.T) {
	m := newMachine(t, true)
	m.script("apt-get", `test "$4" = update || { ./`+policy+`; echo "services: $?"; exit 7; }`)
	for _, of := range []string{"", "#!/bin/sh\n# the administrator's\n"} {
		if of != "" {
			m.write(policy, of)
		}
		output, ok := m.run("tools/setup/install", "demo")
		if ok || !strings.HasSuffix(output, "services: 101\n") {
			t.Errorf("install, ended well %v, says:\n%s", ok, output)
		}
		left, err := os.ReadFile(filepath.Join(m.home, policy))
		if string(left) != of || of == "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the policy was %q, and is %q (%v)", of, left, err)
		}
	}
}

// TestServicesDisabled: a service that came with a package is not started at boot, also where installing has
// failed when the package was there; one that was there before stays as it is.
func TestServicesDisabled(t *testing.T) {
	m := newMachine(t, true)
	m.script("promtool", "")
	m.script("update-rc.d", `echo "update-rc.d $*"`)
	m.script("apt-get", `test "$4" = update && exit
echo >path/redis-server; chmod +x path/redis-server
exit 100`)
	output, ok := m.run("tools/setup/install", "test-all")
	if ok || !strings.HasSuffix(output, "update-rc.d redis-server disable\n") || strings.Contains(output, "update-rc.d prometheus") {
		t.Errorf("install, ended well %v, says:\n%s", ok, output)
	}
}

// TestInstallationKilled: what installations that were killed have left is not taken for the administrator's
// policy, which comes back, and which no other one overwrites.
func TestInstallationKilled(t *testing.T) {
	const administrators, newer = "#!/bin/sh\n# the administrator's\n", "#!/bin/sh\n# a newer one\n"
	for _, of := range []string{"", administrators} {
		m := newMachine(t, true)
		read := func(name string) string {
			content, err := os.ReadFile(filepath.Join(m.home, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			return string(content)
		}
		if of != "" {
			m.write(policy, of)
		}
		install := func(apt string) (output string, ok bool) {
			t.Helper()
			m.script("apt-get", `test "$4" = update || { `+apt+`; }`)
			cmd := m.command("env", "TMPDIR="+m.home, "tools/setup/install", "demo") // who is killed leaves files
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.CombinedOutput()
			return string(out), err == nil
		}
		killed := func() {
			t.Helper()
			if output, ok := install("kill -KILL 0"); ok || read(policy) == of {
				t.Errorf("install, ended well %v, says:\n%s", ok, output)
			}
		}
		const services = "./" + policy + "; echo services: $?"
		killed()
		killed()
		if output, ok := install(services); !ok || !strings.HasSuffix(output, "services: 101\n") {
			t.Errorf("install, ended well %v, says:\n%s", ok, output)
		}
		if left := read(policy); left != of {
			t.Errorf("the policy was %q, and is %q", of, left)
		}
		killed()
		m.write(policy, newer)
		output, ok := install(services)
		if refused := of != ""; ok == refused || refused != strings.Contains(output, "remove one of them") {
			t.Errorf("install with a newer policy than %q, ended well %v, says:\n%s", of, ok, output)
		}
		if left := read(policy); left != newer {
			t.Errorf("the newer policy is %q", left)
		}
		if left := read(policy + ".beeline"); left != of {
			t.Errorf("the policy was %q, and %q is beside the newer one", of, left)
		}
	}
}

// TestKilledWhenInstalled: the policy of an installation that was killed when all was there goes with the
// next one, which has nothing to install.
func TestKilledWhenInstalled(t *testing.T) {
	for _, of := range []string{"", "#!/bin/sh\n# the administrator's\n"} {
		m := newMachine(t, true)
		if of != "" {
			m.write(policy, of)
		}
		m.script("apt-get", `test "$4" = update && exit
for program in ip curl python3; do echo >path/$program; chmod +x path/$program; done
echo >certificates
kill -KILL 0`)
		cmd := m.command("env", "TMPDIR="+m.home, "tools/setup/install", "demo") // who is killed leaves files
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Fatalf("the installation is not killed:\n%s", out)
		}
		if output, ok := m.run("tools/setup/install", "demo"); !ok || output != "" {
			t.Errorf("install, ended well %v, says:\n%s", ok, output)
		}
		left, err := os.ReadFile(filepath.Join(m.home, policy))
		if string(left) != of || of == "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the policy was %q, and is %q (%v)", of, left, err)
		}
	}
}

// TestTwoCheckouts: an installation waits for that of another checkout of the machine, which removes the
// policy in the end.
func TestTwoCheckouts(t *testing.T) {
	first, second := newMachine(t, true), newMachine(t, true)
	ends := map[*machine]func() string{}
	for _, m := range []*machine{first, second} {
		m.has("sleep")
		m.write("wait", "")
		m.script("apt-get", `test "$4" = update && exit
echo >installing
while test -e wait; do sleep 0.1; done
"$POLICY_RC_D"
echo services: $?`)
		cmd := m.command("tools/setup/install", "demo")
		cmd.Env = append(cmd.Env, "POLICY_RC_D="+filepath.Join(first.home, policy), "SETUP_LOCK="+filepath.Join(first.home, "lock"))
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ends[m] = func() string {
			if err := errors.Join(os.Remove(filepath.Join(m.home, "wait")), cmd.Wait()); err != nil {
				t.Error(err)
			}
			return output.String()
		}
		wait.Until(t, "it installs or waits", func() bool {
			_, err := os.Stat(filepath.Join(m.home, "installing"))
			return err == nil || first.waitsForLock()
		})
	}
	for _, m := range []*machine{first, second} {
		if output := ends[m](); !strings.HasSuffix(output, "services: 101\n") {
			t.Errorf("install says:\n%s", output)
		}
	}
}

// waitsForLock reports whether a process waits for the lock of the machine's installations.
func (m *machine) waitsForLock() bool {
	m.t.Helper()
	var status syscall.Stat_t
	if err := syscall.Stat(filepath.Join(m.home, "lock"), &status); err != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		m.t.Fatal(err)
	}
	return regexp.MustCompile(fmt.Sprintf(`(?m)-> FLOCK .*:%d `, status.Ino)).Match(locks)
}

// TestNFS: there an exclusive lock is one of a file that is open for writing.
func TestNFS(t *testing.T) {
	m := newMachine(t, true)
	m.has("chown", "sed")
	if err := os.Chown(m.home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.bin, "flock")); err != nil {
		t.Fatal(err)
	}
	m.script("flock", `for fd; do :; done
mode=$(sed -n 's/^flags:.*\(.\)$/\1/p' /proc/$$/fdinfo/$fd)
test "$1" = --shared || test "$mode" != 0 || { echo "$fd: Bad file descriptor" >&2; exit 65; }`)
	m.script("apt-get", "")
	if output, ok := m.run("tools/setup/install", "demo"); !ok {
		t.Errorf("install:\n%s", output)
	}
	m.makeAsRoot()
	if output, ok := m.run("tools/setup/elevate", "true"); !ok || output != "" {
		t.Errorf("elevate, ended well %v, says:\n%s", ok, output)
	}
	if owner := m.owner("bin/x"); owner != nobody {
		t.Errorf("bin/x is given to %d", owner)
	}
}

// TestProcessOfPackage: a process that a package's script leaves holds up neither the installation
// nor the next one.
func TestProcessOfPackage(t *testing.T) {
	m := newMachine(t, true)
	m.has("sleep")
	m.write("left", "")
	m.script("apt-get", `while test -e left; do sleep 0.1; done >/dev/null &`)
	end := func() {
		if err := os.Remove(filepath.Join(m.home, "left")); err != nil {
			t.Error(err)
		}
	}
	late := time.AfterFunc(wait.Limit, end)
	for range 2 {
		if output, ok := m.run("tools/setup/install", "demo"); !ok {
			t.Errorf("install:\n%s", output)
		}
	}
	if !late.Stop() {
		t.Fatal("the installation waits for the process")
	}
	end()
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

// exported is what the Makefile exports, or sets for a command.
var exported = regexp.MustCompile(`(?m)(?:^|: )export (\w+)|^\t@?([A-Z_]+)=`)

// TestSettingsKept: what the Makefile says to programs, they are told as root, too.
func TestSettingsKept(t *testing.T) {
	m := newMachine(t, false)
	m.script("sudo", `shift; exec "$@"`)
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	// Root has a home of its own, and GOAL is said where there is no sudo.
	not := regexp.MustCompile(`^(HOME|GOAL|GOARCH)$`)
	names := []string{"TMPDIR", "http_proxy"}
	for _, found := range exported.FindAllStringSubmatch(string(makefile), -1) {
		if name := found[1] + found[2]; !not.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) < 10 {
		t.Errorf("the Makefile exports only %v", names)
	}
	m.script("go", `test "$1" = env && eval echo \$$2`)
	output, _ := m.run("env", "GOPROXY=off", "GOMODCACHE=/the user's 100%", "tools/setup/elevate", "sh", "-c", "echo $GOPROXY")
	if want := "file:///the user's 100%25/cache/download|off\n"; output != want {
		t.Errorf("root gets modules from %q, want the user's cache first: %q", output, want)
	}
	for _, name := range names {
		if name == "PATH" {
			continue // see TestSudo
		}
		output, ok := m.run("env", name+"=the user's", "tools/setup/elevate", "sh", "-c", "echo $"+name)
		if !ok || output != "the user's\n" {
			t.Errorf("%s, ended well %v, is %q as root", name, ok, output)
		}
	}
}

// TestRest: make test-rest runs what make test has noted, and removes nothing but that note.
func TestRest(t *testing.T) {
	m := newMachine(t, false)
	m.has("sort", "paste", "xargs", "realpath", "sed", "nproc")
	m.script("sudo", `shift; exec "$@"`)
	m.write("tools/setup/install", "#!/bin/sh\n") // as where nothing is missing
	m.script("go", `for arg; do echo "<$arg>"; done`)
	folders := []string{"tests/netns", "pkg/model"}
	var note strings.Builder
	for _, folder := range append(folders, "bin") {
		if err := os.MkdirAll(filepath.Join(m.home, folder), 0o777); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&note, "%s\t^TestX$/^a_subtest$\n", filepath.Join(m.home, folder))
	}
	m.write("bin/left", note.String())
	if err := os.Chown(filepath.Join(m.home, "bin"), int(m.user), int(m.user)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(m.home, "bin/left"), int(m.user), int(m.user)); err != nil {
		t.Fatal(err)
	}
	output, ok := m.make("test-rest")
	if want := "<-run>\n<^TestX$/^a_subtest$>\n<./tests/netns>\n<./pkg/model>\n<./bin>\n"; !ok || !strings.Contains(output, want) {
		t.Errorf("make test-rest, ended well %v, says:\n%s", ok, output)
	}
	// Where the path is taken for several words, this is the first.
	beside := filepath.Join(filepath.Dir(m.home), "a")
	if err := os.Chown(filepath.Dir(m.home), int(m.user), int(m.user)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(beside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, ok := m.make("test"); !ok {
		t.Errorf("make test:\n%s", output)
	}
	if _, err := os.Stat(beside); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(m.home, "bin/left")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the former note: %v", err)
	}
	want := "no " + filepath.Join(m.home, "bin/left") + ": make test comes first\n"
	if output, ok := m.make("test-rest"); ok || !strings.Contains(output, want) {
		t.Errorf("make test-rest without a note, ended well %v, says:\n%s", ok, output)
	}
}

// TestNoexec: where programs may not run in /tmp, go gets a folder in the checkout to build those that it
// starts. The variable TMP of the environment is not make's.
func TestNoexec(t *testing.T) {
	m := newMachine(t, false)
	m.script("go", `echo "in <$GOTMPDIR>"; test -z "$GOTMPDIR" || cd "$GOTMPDIR"`)
	for options, want := range map[string]string{
		"rw,nosuid,nodev":        "",
		"rw,nosuid,nodev,noexec": filepath.Join(m.home, ".cache/tmp"),
	} {
		m.script("findmnt", "echo "+options)
		output, ok := m.run("env", "TMP=/tmp/user/0", "make", "PATH="+m.bin, "build")
		if !ok || !strings.Contains(output, "in <"+want+">\n") {
			t.Errorf("where /tmp is mounted %s, make build ends well %v:\n%s", options, ok, output)
		}
	}
}

// TestLint: make lint finds what a merge has left, and fails where git does.
func TestLint(t *testing.T) {
	m := newMachine(t, false)
	m.write("tools/setup/install", "#!/bin/sh\n")
	for _, folder := range []string{"bpf", "tests/bench/bpf", "tools/lint"} {
		if err := os.MkdirAll(filepath.Join(m.home, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go", "gofmt", "clang-format-19"} {
		m.script(name, "")
	}
	for status, want := range map[int]bool{0: false, 1: true, 128: false} {
		m.script("git", fmt.Sprintf("test $1 = grep || exit 0; exit %d", status))
		if output, ok := m.make("lint"); ok != want {
			t.Errorf("where git grep ends with %d, make lint ends well %v:\n%s", status, ok, output)
		}
	}
}

// TestVersionInCheckoutOfAnother: make asks git for the version, where root is not the owner, too, and
// the index stays the owner's.
func TestVersionInCheckoutOfAnother(t *testing.T) {
	m := newMachine(t, true)
	m.has("git", "awk", "chown", "setpriv")
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"add", "Makefile"},
		{"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message=x"},
		{"tag", "v9.8.7"},
	} {
		if output, ok := m.run(append([]string{"git"}, args...)...); !ok {
			t.Fatal(output)
		}
	}
	for what, owner := range map[string]uint32{"nobody": nobody, "an id without an entry in passwd": nobody - 600} {
		// Git writes the index anew when a file has another owner than it says.
		if output, ok := m.run("chown", "--recursive", fmt.Sprint(owner), "."); !ok {
			t.Fatal(output)
		}
		output, ok := m.run("env", "GIT_CONFIG_NOSYSTEM=1", "make", "PATH="+m.bin, "help")
		if !ok || !strings.HasPrefix(output, "Beeline v9.8.7\n") {
			t.Errorf("in a checkout of %s, make help, ended well %v, says:\n%s", what, ok, output)
		}
		if is := m.owner(".git/index"); is != owner {
			t.Errorf("the index of %s is given to %d", what, is)
		}
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
		if !strings.Contains(commands, "tools/setup/elevate true") {
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

// rootMade is what root leaves in the checkout: paths, and whether they are given back.
var rootMade = map[string]bool{
	".cache/x": true, "bin/x": true, "pkg/model/testdata/fuzz/FuzzNames/x": true, "pkg/model/x": false,
	"tests/packets/testdata/fuzz/FuzzPrograms/x": true, ".cache/cluster/x": true,
	".cache/cluster/rootfs-1/etc/x": false, ".cache/cluster/rootfs.building/x": false,
}

// makeAsRoot makes files as root has made them.
func (m *machine) makeAsRoot() {
	m.t.Helper()
	for path := range rootMade {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(m.home, path)), 0o755); err != nil {
			m.t.Fatal(err)
		}
		m.write(path, "")
	}
}

// owner returns whose a path of the checkout is.
func (m *machine) owner(path string) uint32 {
	m.t.Helper()
	var status syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(m.home, path), &status); err != nil {
		m.t.Fatal(err)
	}
	return status.Uid
}

// TestWhatRootMakes: what a command has made by sudo in the checkout is the user's.
func TestWhatRootMakes(t *testing.T) {
	m := newMachine(t, false)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make what is root's")
	}
	m.script("sudo", `test "$1" != --set-home || shift; echo "$@"`)
	m.makeAsRoot()
	output, ok := m.run("tools/setup/elevate", "true")
	if !ok {
		t.Errorf("elevate:\n%s", output)
	}
	for _, path := range []string{"/.cache", "/bin", "/pkg/model/testdata", "/tests/packets/testdata"} {
		if !regexp.MustCompile(`(?m)^find .*` + path + ` .* chown `).MatchString(output) {
			t.Errorf("%s stays root's:\n%s", path, output)
		}
	}
}

// TestRootInCheckoutOfAnother: what root makes there without sudo is the owner's, once no command
// makes more.
func TestRootInCheckoutOfAnother(t *testing.T) {
	m := newMachine(t, true)
	m.has("chown")
	if err := os.Chown(m.home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	longer := m.command("tools/setup/elevate", "cat")
	input, err := longer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := longer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := longer.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := input.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	m.makeAsRoot()
	if output, ok := m.run("tools/setup/elevate", "sh", "-c", "exit 3"); ok || output != "" {
		t.Errorf("a command that fails, ended well %v, says:\n%s", ok, output)
	}
	for path := range rootMade {
		if owner := m.owner(path); owner != 0 {
			t.Errorf("%s is given to %d while another command runs", path, owner)
		}
	}
	input.Close()
	if err := longer.Wait(); err != nil {
		t.Error(err)
	}
	for path, given := range rootMade {
		if owner := m.owner(path); given != (owner == nobody) {
			t.Errorf("%s is given to %d, want %v", path, owner, given)
		}
	}
}

// TestMakeInCheckoutOfAnother: what make as root makes there without sudo is the owner's after each target.
func TestMakeInCheckoutOfAnother(t *testing.T) {
	m := newMachine(t, true)
	m.has("chown", "nproc", "tail")
	for _, folder := range []string{"bin", "bpf", "tests/bench/bpf", "pkg/bpf"} {
		if err := os.MkdirAll(filepath.Join(m.home, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write("bpf/tc.bpf.c", "")
	m.write("tools/setup/install", "#!/bin/sh\n") // as where nothing is missing
	m.script("findmnt", "echo noexec")
	replace := `for made; do rm -f "$made" && : >"$made" || exit; done`
	m.script("go", `test "$1" != env || exit 0
set -- bin/x bin/coverage.out pkg/bpf/tc_bpfel.go pkg/bpf/tc_bpfel.o
`+replace)
	m.script("gofmt", "")
	m.script("clang-format-19", "shift; test $# != 0 || exit; "+replace)
	if output, ok := m.run("chown", "--recursive", fmt.Sprint(nobody), "."); !ok {
		t.Fatal(output)
	}
	for _, target := range []string{"setup", "build", "generate", "fmt", "coverage", "test-kernels"} {
		if output, ok := m.make(target); !ok {
			t.Errorf("make %s:\n%s", target, output)
		}
		err := filepath.WalkDir(m.home, func(path string, _ os.DirEntry, err error) error {
			if path, _ = filepath.Rel(m.home, path); err == nil && m.owner(path) != nobody {
				t.Errorf("after make %s %s is root's", target, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, made := range []string{".cache/tmp", "bin/x"} {
		m.owner(made) // they have been made
	}
}

// TestNotGivenBack: what is mounted in the checkout stays root's, and all where there is no such owner, as in a
// container without root.
func TestNotGivenBack(t *testing.T) {
	m := newMachine(t, true)
	m.has("unshare", "mount", "touch", "chown")
	if err := os.Chown(m.home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	m.makeAsRoot()
	if err := os.Mkdir(filepath.Join(m.home, ".cache/mounted"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.run("unshare", "--user", "--map-root-user", "true"); ok {
		if output, ok := m.run("unshare", "--user", "--map-root-user", "tools/setup/elevate", "true"); !ok || output != "" {
			t.Errorf("elevate without an owner, ended well %v, says:\n%s", ok, output)
		}
	}
	if owner := m.owner("bin/x"); owner != 0 {
		t.Errorf("bin/x is given to %d", owner)
	}
	output, ok := m.run("unshare", "--mount", "--propagation=private", "sh", "-c",
		"mount -t tmpfs tmpfs .cache/mounted && touch .cache/mounted/x && tools/setup/elevate true && stat --format=%u .cache/mounted/x bin/x")
	if want := fmt.Sprintf("0\n%d\n", nobody); !ok || output != want {
		t.Errorf("elevate with a mount, ended well %v, says:\n%s", ok, output)
	}
}

// TestClean: make clean asks for root's rights where something is root's, as the files of Debian are.
func TestClean(t *testing.T) {
	m := newMachine(t, false)
	m.script("sudo", `echo "as root: $*"`)
	if output, ok := m.make("clean"); !ok || strings.Contains(output, "as root") {
		t.Errorf("make clean, ended well %v, says:\n%s", ok, output)
	}
	if os.Geteuid() != 0 {
		return
	}
	m.makeAsRoot()
	if output, ok := m.make("clean"); !ok || !regexp.MustCompile(`(?m)^as root: .* rm -rf bin .cache$`).MatchString(output) {
		t.Errorf("where something is root's, make clean, ended well %v, says:\n%s", ok, output)
	}
}

// TestMissingPackages: a system without apt-get is told what to install; where all is there,
// nothing is done and no rights are needed.
func TestMissingPackages(t *testing.T) {
	m := newMachine(t, false)
	m.script("curl", "")
	output, ok := m.run("tools/setup/install", "demo")
	if ok || !strings.Contains(output, "missing: ca-certificates iproute2 python3\n") || !strings.Contains(output, "no apt-get") {
		t.Errorf("ended well %v, says:\n%s", ok, output)
	}
	m.script("ip", "")
	m.script("python3", "")
	m.write("certificates", "")
	if output, ok := m.run("tools/setup/install", "demo"); !ok || output != "" {
		t.Errorf("with all that is needed: ended well %v, says:\n%s", ok, output)
	}
}
