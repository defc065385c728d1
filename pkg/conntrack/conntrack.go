// Package conntrack sets up netfilter's connection tracking as kube-proxy does, and ends its UDP
// connections to endpoints that are gone. Beeline does without it, but the host's firewall and the
// pods' own connections may not.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// Settings are the sysctls to set. Fields that are zero leave them as they are.
type Settings struct {
	// Max is how many connections are tracked at most.
	Max int
	// How long connections may be idle; precise to a second.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPBeLiberal accepts packets that are out of the window.
	TCPBeLiberal bool
}

// Host is where the settings are made.
type Host struct {
	// Sysctls is the folder of net.netfilter's settings, which are those of the
	// network namespace. HashSize is the file of the table's size, which is the
	// machine's.
	Sysctls, HashSize string
}

// ThisHost is the machine itself.
var ThisHost = Host{
	Sysctls:  "/proc/sys/net/netfilter",
	HashSize: "/sys/module/nf_conntrack/parameters/hashsize",
}

// ErrNotLoaded is the error where there is no connection tracking.
var ErrNotLoaded = errors.New("connection tracking is not loaded")

// Apply makes the settings and returns the names of the files that it changed. What
// cannot be set stops nothing else; the error names each such file.
func (h Host) Apply(s Settings) (changed []string, err error) {
	if _, err := os.Stat(filepath.Join(h.Sysctls, "nf_conntrack_max")); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotLoaded
	}
	h, release, err := h.writable()
	if err != nil {
		return nil, err
	}
	defer release()
	liberal := 0
	if s.TCPBeLiberal {
		liberal = 1
	}
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"nf_conntrack_max", s.Max},
		{"nf_conntrack_tcp_timeout_established", int(s.TCPEstablished / time.Second)},
		{"nf_conntrack_tcp_timeout_close_wait", int(s.TCPCloseWait / time.Second)},
		{"nf_conntrack_tcp_be_liberal", liberal},
		{"nf_conntrack_udp_timeout", int(s.UDP / time.Second)},
		{"nf_conntrack_udp_timeout_stream", int(s.UDPStream / time.Second)},
	} {
		if f.value == 0 {
			continue
		}
		did, err := write(filepath.Join(h.Sysctls, f.name), f.value, equal)
		if err == nil && f.name == "nf_conntrack_max" {
			// The table has a bucket for four connections, as where the kernel chooses.
			var grown bool
			if grown, err = write(h.HashSize, s.Max/4, atLeast); grown {
				changed = append(changed, "hashsize")
			}
		}
		if did {
			changed = append(changed, f.name)
		}
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

// ApplyWhenLoaded is Apply where connection tracking may be loaded later: it looks once in a
// period, until it has been applied, and returns nothing when ctx ends before.
func (h Host) ApplyWhenLoaded(ctx context.Context, s Settings, period time.Duration) (changed []string, err error) {
	for {
		if changed, err = h.Apply(s); !errors.Is(err, ErrNotLoaded) {
			return changed, err
		}
		if !pause.For(ctx, period) {
			return nil, nil
		}
	}
}

func equal(have, want int) bool   { return have == want }
func atLeast(have, want int) bool { return have >= want }

// write writes a number to a file unless what it has is enough, and tells whether it
// did.
func write(name string, value int, enough func(have, want int) bool) (bool, error) {
	have, err := read(name)
	if err != nil || enough(have, value) {
		return false, err
	}
	if err := os.WriteFile(name, []byte(strconv.Itoa(value)), 0); err != nil {
		return false, fmt.Errorf("set to %d, from %d: %w", value, have, err)
	}
	return true, nil
}

// read reads a number from a file.
func read(name string) (int, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}
