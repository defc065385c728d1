// Package netns runs code in network namespaces: the kernel looks up devices and sockets in
// that of the calling thread.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// current stands for the calling thread's namespace.
const current = "/proc/thread-self/ns/net"

// Namespace is an open network namespace, which stays as long as it is open.
type Namespace struct {
	file *os.File
	name string
}

// Current opens the calling thread's namespace.
func Current() (*Namespace, error) { return Open(current) }

// Open opens the namespace that a file stands for, such as /proc/PID/ns/net or one below
// /run/netns. The error is [ErrNone] when it stands for none.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	name, err := nameOf(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", path, err), file.Close())
	}
	return &Namespace{file, name}, nil
}

// ErrNone is the error of opening a file that stands for no namespace: what one was mounted
// over is a plain file.
var ErrNone = errors.New("not a namespace")

// nameOf returns the name of the namespace that a file stands for.
func nameOf(file *os.File) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return "", err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return "", ErrNone
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return "", err
	}
	return fmt.Sprintf("net:[%d]", stat.Ino), nil
}

// Name returns the kernel's name of the namespace, such as "net:[4026531840]".
func (n *Namespace) Name() string { return n.name }

// ID returns the number by which the calling thread's namespace knows this one, as that of the
// other end of a device (IFLA_LINK_NETNSID); -1 when it knows none.
func (n *Namespace) ID() (int, error) {
	id, err := netlink.GetNetNsIdByFd(int(n.file.Fd()))
	if err != nil {
		return -1, fmt.Errorf("id of network namespace %s: %w", n.name, err)
	}
	return id, nil
}

// Close closes the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Run calls fn on a thread that is in the namespace meanwhile. For [pause.Work] that is the calling one.
func (n *Namespace) Run(fn func() error) error {
	var err error
	pause.Elsewhere(func() { err = n.visit(fn) })
	return err
}

// visit calls fn on the calling goroutine's thread, which ends with the goroutine when it
// cannot go back. It has to try: the process's first thread, whose namespace is the process's
// in /proc, never ends.
func (n *Namespace) visit(fn func() error) error {
	runtime.LockOSThread()
	own, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err := n.enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = fn()
	if back := own.enter(); back != nil {
		return errors.Join(err, fmt.Errorf("go back: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// enter puts the calling thread into the namespace.
func (n *Namespace) enter() error {
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	return nil
}
