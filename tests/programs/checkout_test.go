package programs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckout: a program is built from the checkout that the variable names, at another path
// once it has changed, and the version says so.
func TestCheckout(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skipf("needs git: %v", err)
	}
	useOwnCache(t)
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/program\n")
	write("main.go", "package main\n\nfunc main() { println(1) }\n")
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"add", "."},
		{"-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--message=first"},
		{"tag", "v1.2.3"},
	} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	c := Checkout{Set: Set{Name: "test-checkout", Packages: map[string]string{"program": "."}}, Project: "example/program", Variable: "TEST_CHECKOUT_SRC"}

	t.Setenv(c.Variable, "")
	if _, err := c.Build(t.Context()); !errors.Is(err, ErrNoCheckout) || !strings.Contains(err.Error(), c.Variable) {
		t.Errorf("without a checkout: %v", err)
	}
	t.Setenv(c.Variable, dir)
	first := build(t, c, "example/program v1.2.3")
	if again := build(t, c, "example/program v1.2.3"); again != first {
		t.Errorf("without a change, built to %s and then to %s", first, again)
	}
	write("main.go", "package main\n\nfunc main() { println(2) }\n")
	if changed := build(t, c, "example/program v1.2.3-dirty"); changed == first {
		t.Errorf("with a change, built to %s again", changed)
	}
}

// useOwnCache has the test build in the cache of a folder that passes for the repository: users
// may run tests in a checkout that is not theirs.
func useOwnCache(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	mark := filepath.Join(root, "tests/programs/build.go")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o755), os.WriteFile(mark, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
}

// build returns the folder with the program, of which git gives that version.
func build(t *testing.T, c Checkout, version string) string {
	t.Helper()
	built, err := c.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(built, "program")); err != nil {
		t.Error(err)
	}
	if got, err := c.Version(t.Context()); err != nil || got != version {
		t.Errorf("version %q, %v, want %q", got, err, version)
	}
	return built
}
