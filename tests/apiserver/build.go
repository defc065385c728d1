package apiserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// moduleDir is the nested module, relative to the repository's root.
const moduleDir = "tests/apiserver/kubernetes"

// linkerFlags strip the symbols and give the programs the version that their
// release has. It must be that of the nested module.
const linkerFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v1.36.3" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36"

// programs are the packages to build, by the name of the binary.
var programs = map[string]string{
	"etcd":           "go.etcd.io/etcd/server/v3",
	"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-proxy":     "k8s.io/kubernetes/cmd/kube-proxy",
}

// Build returns the directory of the programs, built when the cache holds none
// of these versions. Test processes that ask at the same time build once.
func Build(ctx context.Context) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	version, err := fingerprint(filepath.Join(root, moduleDir))
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache", "bin")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(cache, "kubernetes.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	dir := filepath.Join(cache, "kubernetes-"+version)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, build(ctx, filepath.Join(root, moduleDir), dir)
}

// build fills dir, which appears only when all programs are in it. The caller
// holds the lock.
func build(ctx context.Context, module, dir string) error {
	tmp := filepath.Join(filepath.Dir(dir), "kubernetes.building")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	for name, pkg := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false",
			"-ldflags", linkerFlags, "-o", filepath.Join(tmp, name), pkg)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return os.Rename(tmp, dir)
}

// fingerprint changes with whatever changes the binaries.
func fingerprint(module string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), linkerFlags)
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// lock takes the lock file at path, waiting while another process has it. The
// kernel frees it when the process ends.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// repositoryRoot walks up from the directory of the package under test.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, moduleDir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("api server for tests: " + moduleDir + " not found: run the test inside the repository")
		}
		dir = parent
	}
}
