// Package devconf gives a network namespace the settings of devices that the kernel has without an
// administrator. A new namespace has those of the machine's first one (devconf_inherit_init_net), and
// what tests send is then dropped on a machine with rp_filter. It depends on no other package of Beeline:
// tests and tools of any package can use it.
package devconf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// root is the folder of the calling thread's namespace.
const root = "/proc/sys/net"

// setting is a variable in conf/all and conf/default, and its value.
type setting struct{ family, name, value string }

// settings are those that decide which packets pass and who answers, in the order in which they are
// written: forwarding sets accept_redirects.
var settings = []setting{
	{"ipv4", "forwarding", "0"},
	{"ipv4", "rp_filter", "0"},
	{"ipv4", "src_valid_mark", "0"},
	{"ipv4", "accept_local", "0"},
	{"ipv4", "route_localnet", "0"},
	{"ipv4", "arp_ignore", "0"},
	{"ipv4", "arp_announce", "0"},
	{"ipv4", "arp_filter", "0"},
	{"ipv4", "arp_accept", "0"},
	{"ipv4", "proxy_arp", "0"},
	{"ipv4", "accept_redirects", "1"},
	{"ipv4", "secure_redirects", "1"},
	{"ipv4", "send_redirects", "1"},
	{"ipv4", "shared_media", "1"},
	{"ipv4", "log_martians", "0"},
	{"ipv4", "promote_secondaries", "0"},
	{"ipv6", "disable_ipv6", "0"},
	{"ipv6", "forwarding", "0"},
	{"ipv6", "accept_ra", "1"},
	{"ipv6", "accept_redirects", "1"},
	{"ipv6", "autoconf", "1"},
}

// Reset sets the variables of the calling thread's namespace and of its loopback device: call it
// before other devices are made. It writes only what differs, so that a machine with the kernel's own
// settings needs no writable /proc/sys; the kernel may lack IPv6.
func Reset() error {
	for _, s := range settings {
		for _, device := range []string{"all", "default", "lo"} {
			path := filepath.Join(root, s.family, "conf", device, s.name)
			is, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(is)) == s.value {
				continue
			}
			if err == nil {
				err = os.WriteFile(path, []byte(s.value), 0)
			}
			if err != nil {
				return fmt.Errorf("set a new network namespace's %s: %w", path, err)
			}
		}
	}
	return nil
}
