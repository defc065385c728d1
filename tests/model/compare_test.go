package model_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// spoiled returns a packet whose TCP or UDP checksum is wrong by so much.
func spoiled(ip []byte, by uint16) []byte {
	p, ok := parse(ip)
	at := p.body + 16
	if p.protocol == unix.IPPROTO_UDP {
		at = p.body + 6
	}
	if !ok || by == 0 || ip[at] == 0 && ip[at+1] == 0 {
		return ip
	}
	wrong := uint32(binary.BigEndian.Uint16(ip[at:])) + uint32(by)
	wrong = wrong&0xffff + wrong>>16
	if wrong == 0 {
		wrong = 0xffff
	}
	binary.BigEndian.PutUint16(ip[at:], uint16(wrong))
	return ip
}

// wantUntouched returns an error unless a packet has passed as it was.
func wantUntouched(what effect, out, in []byte) error {
	if what != passed || !bytes.Equal(out, in) {
		return fmt.Errorf("a packet that is to be left alone is %s as\n% x, was\n% x", what, out, in)
	}
	return nil
}

// wantSame returns an error unless a packet is as wanted, but for a hop that it may have
// taken where it was sent on.
func wantSame(what effect, out, want []byte) error {
	if len(out) == len(want) && what == passed && hops(out) != hops(want) {
		return errors.New("what is passed on has a hop less")
	}
	if !sameButHops(out, want) {
		return fmt.Errorf("is\n% x, want\n% x", out, want)
	}
	return nil
}

// sameButHops reports whether two packets are the same but for a hop less. Both spellings of
// zero are one checksum.
func sameButHops(out, want []byte) bool {
	if len(out) != len(want) || len(out) < 20 || hops(out) != hops(want) && hops(out) != hops(want)-1 {
		return false
	}
	out, want = slices.Clone(out), slices.Clone(want)
	if out[0]>>4 == 4 {
		if sum(out[:int(out[0]&0xf)*4]) != 0xffff {
			return false
		}
		out[8], out[10], out[11] = want[8], want[10], want[11]
	} else {
		out[7] = want[7]
	}
	for _, ip := range [][]byte{out, want} {
		if p, ok := parse(ip); ok && p.protocol == unix.IPPROTO_TCP && p.body+18 <= len(ip) {
			if at := ip[p.body+16:]; at[0] == 0xff && at[1] == 0xff {
				at[0], at[1] = 0, 0
			}
		}
	}
	return bytes.Equal(out, want)
}

// hops returns how many hops a packet has left.
func hops(ip []byte) byte {
	if ip[0]>>4 == 4 {
		return ip[8]
	}
	return ip[7]
}

// wantError returns an error unless an ICMP error has come to where the packet was from that
// it quotes, quoting it as it was there.
func wantError(what, wanted effect, out, in []byte, to netip.Addr, quote tuple) error {
	p, ok := parse(out)
	if !ok || what != wanted || p.to.Addr() != to {
		return fmt.Errorf("the ICMP error is %s as %s, want it %s to %s", what, p.tuple, wanted, to)
	}
	if wrong := rightSums(out); wrong != "" {
		return fmt.Errorf("the ICMP error has a wrong checksum (%s):\n% x, was\n% x", wrong, out, in)
	}
	was, _ := parse(in)
	if !bytes.Equal(out[p.body:p.body+2], in[was.body:was.body+2]) || !bytes.Equal(out[p.body+4:p.body+8], in[was.body+4:was.body+8]) {
		return fmt.Errorf("the ICMP error is another one:\n% x, was\n% x", out, in)
	}
	inner, ok := parse(out[p.body+8:])
	if !ok || inner.tuple != quote {
		return fmt.Errorf("the ICMP error quotes %s, want %s", inner.tuple, quote)
	}
	header := out[p.body+8:]
	if header[0]>>4 == 4 && sum(header[:int(header[0]&0xf)*4]) != 0xffff {
		return fmt.Errorf("the quoted header has a wrong checksum: % x", header)
	}
	return nil
}

// parseFragment returns how much of the packet is in the first fragment.
func parseFragment(ip []byte) (size int, ok bool) {
	if ip[0]>>4 == 4 {
		return len(ip) - int(ip[0]&0xf)*4, true
	}
	at := fragmentHeader(ip)
	return len(ip) - at - 8, at > 0
}

// fragmentHeader returns where that of an IPv6 packet is.
func fragmentHeader(ip []byte) int {
	next, at := ip[6], 40
	for next == unix.IPPROTO_DSTOPTS {
		next, at = ip[at], at+8*int(ip[at+1])+8
	}
	if next != unix.IPPROTO_FRAGMENT {
		return 0
	}
	return at
}
