package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Setting reads a number below /proc/sys/net, of the calling thread's namespace; false where the
// kernel has no such setting.
func Setting(name string) (value int, found bool, err error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys/net", name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	value, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return value, err == nil, err
}

// ForcesForwarding reports whether the kernel forwards IPv6 packets of a device whatever the setting of
// all of them says (Linux 6.17). Not known is no.
func ForcesForwarding(device string) bool {
	name, _ := OfDevice("ipv6", device, "force_forwarding")
	value, _, _ := Setting(name)
	return value != 0
}

// OfDevice returns the name of a device's setting as [Setting] takes it, and as sysctl does: with a
// slash for each dot of the device's name, of a VLAN mostly.
func OfDevice(family, device, setting string) (name, sysctl string) {
	return fmt.Sprintf("%s/conf/%s/%s", family, device, setting),
		fmt.Sprintf("net.%s.conf.%s.%s", family, strings.ReplaceAll(device, ".", "/"), setting)
}
