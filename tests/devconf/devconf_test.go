package devconf

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestReset: whatever a namespace has inherited, it and a device made afterwards have the kernel's own
// settings.
func TestReset(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the namespace
		done <- errors.Join(unix.Unshare(unix.CLONE_NEWNET), resetHardened(t))
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// resetHardened sets all variables of the calling thread's namespace to other values, has them reset, and
// looks for them.
func resetHardened(t *testing.T) error {
	for _, s := range settings {
		other := "1"
		if s.value == "1" {
			other = "0"
		}
		for _, device := range []string{"all", "default", "lo"} {
			if err := os.WriteFile(filepath.Join(root, s.family, "conf", device, s.name), []byte(other), 0); err != nil {
				return err
			}
		}
	}
	if err := Reset(); err != nil {
		return err
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "new"})
	veth.PeerName = "peer"
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	for _, s := range settings {
		for _, device := range []string{"all", "default", "lo", "new"} {
			path := filepath.Join(root, s.family, "conf", device, s.name)
			is, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if got := strings.TrimSpace(string(is)); got != s.value {
				t.Errorf("%s is %s, want %s", path, got, s.value)
			}
		}
	}
	return nil
}
