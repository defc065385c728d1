package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initEnv is where the first process of a node finds its [nodeSpec].
const initEnv = "BEELINE_CLUSTER_NODE"

// nodeSpec is what the first process of a node has to do.
type nodeSpec struct {
	Name        string
	Dir         string
	Rootfs      string
	Shared      []string // folders of this machine that the node sees too
	Groups      string   // path of the node's cgroups
	Hierarchies []hierarchy
	Programs    programFolders
	Images      []string
	// Files are written to the node: path → content.
	Files map[string]string
	// KubeletArgs are the flags of the kubelet.
	KubeletArgs []string
}

// runNode is the first process of a node. It makes the node's view of the file
// system, starts containerd, imports the images and, once told to by a line of
// standard input, starts the kubelet. Then it reaps what ends. It reports each
// step by a line of standard output.
//
// All runs on the main thread, which alone is in the node's cgroup namespace.
func runNode(env string) error {
	var spec nodeSpec
	if err := json.Unmarshal([]byte(env), &spec); err != nil {
		return err
	}
	if err := os.Unsetenv(initEnv); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return err
	}
	g := groups{hierarchies: spec.Hierarchies, name: spec.Groups}
	if err := g.join(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	if err := enterRoot(spec); err != nil {
		return err
	}
	if err := os.Setenv("PATH", spec.Programs.path()); err != nil {
		return err
	}
	if _, err := spawn("containerd", "--config", "/etc/containerd/config.toml"); err != nil {
		return err
	}
	if err := awaitSocket(containerdSocket); err != nil {
		return err
	}
	for _, archive := range spec.Images {
		if err := runToEnd("ctr", "--namespace=k8s.io", "images", "import", archive); err != nil {
			return fmt.Errorf("import %s: %w", archive, err)
		}
	}
	fmt.Println("images")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	kubelet, err := spawn("kubelet", spec.KubeletArgs...)
	if err != nil {
		return err
	}
	fmt.Println("kubelet")
	return reap(kubelet)
}

// spawn starts a program that writes to /var/log/<name>.log. It is in the cgroups
// of the node.
func spawn(name string, args ...string) (pid int, err error) {
	log, err := os.OpenFile(filepath.Join("/var/log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	path, err := exec.LookPath(name)
	if err != nil {
		return 0, err
	}
	process, err := os.StartProcess(path, append([]string{name}, args...), &os.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []*os.File{nil, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", name, err)
	}
	pid = process.Pid
	return pid, process.Release()
}

// runToEnd runs a program and fails when it does.
func runToEnd(name string, args ...string) error {
	pid, err := spawn(name, args...)
	if err != nil {
		return err
	}
	status, err := await(pid)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("%s ended with status %#x, see its log", name, uint32(status))
	}
	return err
}

// await reaps until a process ends.
func await(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ended == pid {
			return status, err
		}
	}
}

// reap reaps until the kubelet ends, which it should not.
func reap(kubelet int) error {
	status, err := await(kubelet)
	if err != nil {
		return err
	}
	return fmt.Errorf("the kubelet ended with status %#x", uint32(status))
}

// containerdSocket is where the kubelet finds its runtime.
const containerdSocket = "/run/containerd/containerd.sock"

func awaitSocket(path string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: no answer after a minute: %w", path, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
