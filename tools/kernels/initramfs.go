package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	kubernetes "github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

// agentPath is where the agent is in an initramfs.
const agentPath = "/usr/bin/beeline-agent"

// packInitramfs writes an initramfs with init, the kernel's modules, programs for tests,
// the test binaries and the job that names them.
func packInitramfs(ctx context.Context, name string, img *image, b *binaries, args, env []string) error {
	modules, err := modulesOf(ctx, img)
	if err != nil {
		return err
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriter(file)
	archive := newCPIOWriter(buffered)
	archive.device("/dev/console", 5, 1)
	archive.file("/etc/hosts", []byte("127.0.0.1 localhost\n::1 localhost\n"))
	archive.file("/etc/protocols", []byte("tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n")) // for ipset
	for name, source := range map[string]string{"/init": b.init, agentPath: b.agent} {
		if err := addFile(archive, name, source); err != nil {
			return err
		}
	}
	job := guest.Job{Args: args, Env: env}
	for _, m := range modules {
		path := "/modules/" + m.name + ".ko"
		archive.file(path, m.data)
		job.Modules = append(job.Modules, path)
	}
	if err := addPrograms(archive, img); err != nil {
		return err
	}
	if err := addKubeProxy(ctx, archive, img, modules); err != nil {
		return err
	}
	for _, t := range b.tests {
		test, err := addTest(archive, t)
		if err != nil {
			return fmt.Errorf("pack %s: %w", t.pkg, err)
		}
		job.Tests = append(job.Tests, test)
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	archive.file(guest.JobPath, text)
	if err := archive.close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// addKubeProxy adds kube-proxy where a kernel has IPVS. It is built for the machine that builds.
func addKubeProxy(ctx context.Context, archive *cpioWriter, img *image, modules []module) error {
	if img.arch.name != runtime.GOARCH || !slices.ContainsFunc(modules, func(m module) bool { return m.name == "ip_vs" }) {
		return nil
	}
	dir, err := kubernetes.Kubernetes.Build(ctx)
	if err != nil {
		return err
	}
	return addFile(archive, kubeProxyPath, filepath.Join(dir, "kube-proxy"))
}

// addTest adds a test binary and its package's testdata.
func addTest(archive *cpioWriter, t testBinary) (guest.Test, error) {
	test := guest.Test{Package: t.pkg, Dir: path.Join("/src", t.pkg)}
	test.Binary = path.Join(test.Dir, path.Base(t.path))
	if err := addFile(archive, test.Binary, t.path); err != nil {
		return test, err
	}
	testdata := filepath.Join(t.dir, "testdata")
	if _, err := os.Stat(testdata); os.IsNotExist(err) {
		return test, nil
	}
	return test, filepath.WalkDir(testdata, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		inside, err := filepath.Rel(t.dir, name)
		if err != nil {
			return err
		}
		return addFile(archive, path.Join(test.Dir, inside), name)
	})
}

func addFile(archive *cpioWriter, name, source string) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	archive.file(name, data)
	return nil
}
