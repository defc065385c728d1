package host

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/tests/wait"
)

// ports returns what is told of a range and reserved ports.
func ports(first, last uint16, reserved ...int) bpfmap.SourcePorts {
	p := bpfmap.SourcePorts{LocalMin: first, LocalMax: last}
	for _, port := range reserved {
		p.Reserved[port/64] |= 1 << (port % 64)
	}
	return p
}

func writeSettings(t *testing.T, dir, local, reserved string) {
	t.Helper()
	for name, text := range map[string]string{"ip_local_port_range": local, "ip_local_reserved_ports": reserved} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
}

func TestReadSourcePorts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		local, reserved string
		want            bpfmap.SourcePorts
		fault           string
	}{
		{"32768\t60999\n", "\n", ports(32768, 60999), ""},
		{"1024\t65535\n", "1024-1026,8080,65535\n", ports(1024, 65535, 1024, 1025, 1026, 8080, 65535), ""},
		{"", "\n", bpfmap.SourcePorts{}, "ip_local_port_range"},
		{"1 65536", "\n", bpfmap.SourcePorts{}, "ip_local_port_range"},
		{"1 2", "http", bpfmap.SourcePorts{}, "ip_local_reserved_ports"},
		{"1 2", "1-", bpfmap.SourcePorts{}, "ip_local_reserved_ports"},
	} {
		dir := t.TempDir()
		writeSettings(t, dir, tt.local, tt.reserved)
		got, err := readSourcePorts(dir)
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%q, %q: error %v, want one about %s", tt.local, tt.reserved, err, tt.fault)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q, %q: %v, %v", tt.local, tt.reserved, got, err)
		}
	}
}

// TestFollowSourcePorts: the settings of a network namespace are told at once, when they change, and
// when others are known.
func TestFollowSourcePorts(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace of its own")
	}
	const dir = "/proc/sys/net/ipv4" // of the thread that opens it
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	var told []bpfmap.SourcePorts
	var known bpfmap.SourcePorts
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			followSourcePorts(ctx, dir, func() bpfmap.SourcePorts { return known }, func(p bpfmap.SourcePorts, again bool) {
				told, known = append(told, p), p
				if again != (len(told) == 4) {
					t.Errorf("told for the %d. time: again %t", len(told), again)
				}
				switch len(told) {
				case 1:
					writeSettings(t, dir, "10000 20000", "")
				case 2:
					writeSettings(t, dir, "10000 20000", "5000-5002,70")
				case 3:
					known.LocalMin, known.LocalMax = 1, 2 // as by another program
				default:
					cancel()
				}
			})
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := []bpfmap.SourcePorts{bpfmap.DefaultSourcePorts, ports(10000, 20000), ports(10000, 20000, 70, 5000, 5001, 5002)}
	want = append(want, want[2])
	if !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
