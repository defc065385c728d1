package main

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

// TestAnnounced: ARP requests and replies tell the sender's address, neighbor advertisements
// their target's; other frames tell none.
func TestAnnounced(t *testing.T) {
	const (
		from  = "021900000001" // the frame's source
		owner = "021900000002"
		ipv6  = "6000000000203aff fe80000000000000001900fffe000002 fe80000000000000001900fffe000001"
		na    = "8800 0000 60000000 fd980018000000000000000000000200"
	)
	for _, c := range []struct {
		what, frame string
		ip          string
	}{
		{"ARP request", "ffffffffffff" + from + "0806 0001 0800 06 04 0001 " + owner + "c61200c8 000000000000 c6120001", "198.18.0.200"},
		{"ARP reply", "021900000000" + from + "0806 0001 0800 06 04 0002 " + owner + "c61200c8 021900000000 c6120001", "198.18.0.200"},
		{"advertisement", "021900000000" + from + "86dd" + ipv6 + na + "0201" + owner, "fd98:18::200"},
		{"advertisement without an address", "021900000000" + from + "86dd" + ipv6 + na, ""},
		{"solicitation", "3333ff000200" + from + "86dd" + ipv6 + strings.Replace(na, "88", "87", 1) + "0101" + owner, ""},
		{"IPv4", "021900000000" + from + "0800" + strings.Repeat("45", 60), ""},
		{"short", "021900000000" + from + "0806", ""},
	} {
		frame, err := hex.DecodeString(strings.ReplaceAll(c.frame, " ", ""))
		if err != nil {
			t.Fatal(c.what, err)
		}
		var want netip.Addr
		if c.ip != "" {
			want = netip.MustParseAddr(c.ip)
		}
		ip, mac := announced(frame)
		if ip != want || want.IsValid() && mac.String() != "02:19:00:00:00:02" {
			t.Errorf("%s: %s at %s, want %s", c.what, ip, mac, want)
		}
	}
}
