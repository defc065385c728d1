package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const archiveKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// kernelDepends matches the dependencies that hold parts of a kernel, programDepends those
// of a program.
var (
	kernelDepends  = regexp.MustCompile(`(?m)^\s*Depends: (linux-(?:image|base|binary|modules)-\S+)$`)
	programDepends = regexp.MustCompile(`(?m)^\s*Depends: ([a-z0-9.+-]+)$`)
)

// fetch downloads a kernel, and the programs for tests of its suite of Debian, and unpacks them
// into dir.
func fetch(ctx context.Context, k kernel, dir string) error {
	apt, err := newApt(ctx, k, dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(apt.dir)
	if _, err := apt.run(ctx, "apt-get", "update"); err != nil {
		return err
	}
	names, err := apt.closure(ctx, k.image, kernelDepends)
	if err != nil {
		return err
	}
	for _, name := range programsPackages {
		programs, err := apt.closure(ctx, name, programDepends)
		if err != nil {
			return err
		}
		names = append(names, programs...)
	}
	if _, err := apt.run(ctx, "apt-get", append([]string{"download"}, names...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(apt.dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if _, err := command(ctx, apt.dir, "dpkg-deb", "--extract", deb, dir); err != nil {
			return err
		}
	}
	return nil
}

// apt is an apt of our own: it knows one suite, and neither reads nor changes
// the packages, lists and sources of the machine. Proxies and credentials are
// those of the machine.
type apt struct {
	dir  string
	conf string
}

func newApt(ctx context.Context, k kernel, parent string) (*apt, error) {
	uri, err := mirror(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "apt-")
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	a := &apt{dir: dir, conf: filepath.Join(dir, "apt.conf")}
	files := map[string]string{
		"kernel.sources": sources(uri, k),
		"apt.conf":       configuration(dir, k.arch),
		"status":         "",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func sources(uri string, k kernel) string {
	return "Types: deb\nURIs: " + uri + "\nSuites: " + k.suite +
		"\nComponents: main\nArchitectures: " + k.arch.name + "\nTargets: Packages\nSigned-By: " + archiveKeyring + "\n"
}

// configuration returns an apt.conf that is read after the machine's own.
func configuration(dir string, arch *architecture) string {
	return fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::SourceList "%[1]s/kernel.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Architecture "%[2]s";
APT::Sandbox::User "";
#clear APT::Update;
#clear DPkg::Post-Invoke;
`, dir, arch.name)
}

func (a *apt) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	return command(ctx, a.dir, name, append([]string{"--quiet", "--config-file=" + a.conf}, args...)...)
}

// closure returns a package and those that it depends on by dependencies which match.
func (a *apt) closure(ctx context.Context, name string, depends *regexp.Regexp) ([]string, error) {
	names := []string{name}
	seen := map[string]bool{name: true}
	for i := 0; i < len(names); i++ {
		out, err := a.run(ctx, "apt-cache", "depends", "--important", names[i])
		if err != nil {
			return nil, err
		}
		for _, match := range depends.FindAllStringSubmatch(string(out), -1) {
			if !seen[match[1]] {
				seen[match[1]] = true
				names = append(names, match[1])
			}
		}
	}
	return names, nil
}

// mirror returns the URI of the Debian archive that the machine's apt uses.
func mirror(ctx context.Context) (string, error) {
	out, err := command(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Origin: Debian", "Label: Debian")
	if err != nil {
		return "", err
	}
	uri, _, _ := strings.Cut(string(out), "\n")
	if uri == "" {
		return "", errors.New("apt knows no Debian mirror to get kernels from: run `apt-get update` on a Debian machine")
	}
	return uri, nil
}

// command runs a program of the machine in dir, which speaks English. The error holds what it said.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return out, nil
}
