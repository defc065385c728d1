package conntrack_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/conntrack"
)

// TestReadOnly sets a time-out where /proc/sys is mounted read-only, as in a container
// that is not privileged.
func TestReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network and a mount namespace")
	}
	err := inNamespaces(func() error {
		const file = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
		if err := os.WriteFile(file, []byte("3600"), 0); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("writing to %s: %v, so this test proves nothing", file, err)
		}
		changed, err := conntrack.ThisHost.Apply(conntrack.Settings{TCPCloseWait: time.Hour})
		if err != nil || !slices.Equal(changed, []string{"nf_conntrack_tcp_timeout_close_wait"}) {
			return fmt.Errorf("changed %v: %v", changed, err)
		}
		got, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(got)) != "3600" {
			err = fmt.Errorf("the time-out is %s s", got)
		}
		return err
	})
	if errors.Is(err, conntrack.ErrNotLoaded) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// inNamespaces runs fn on a thread in a new network namespace, and with /proc/sys
// mounted read-only. The thread ends with it.
func inNamespaces(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- errors.Join(unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS), readOnlySysctls(fn))
	}()
	return <-done
}

func readOnlySysctls(fn func() error) error {
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if _, err := os.Stat(file); err != nil {
		return conntrack.ErrNotLoaded
	}
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	return fn()
}
