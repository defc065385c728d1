package kubeproxy

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// truth says whether something holds for the packets that are looked at: for none, for all, or for some
// that cannot be told apart.
type truth uint8

const (
	no truth = iota
	yes
	maybe
)

func (t truth) not() truth {
	switch t {
	case no:
		return yes
	case yes:
		return no
	}
	return maybe
}

// word is one value that a register may have: its bits, and which of them are known.
type word struct{ bits, known []byte }

// exactly is a word of which all is known.
func exactly(bits []byte) word { return word{bits, bytes.Repeat([]byte{0xff}, len(bits))} }

// equals compares the word with as much as data has.
func (w word) equals(data []byte) truth {
	result := yes
	for i, b := range data {
		switch {
		case i >= len(w.bits):
			return maybe
		case (w.bits[i]^b)&w.known[i] != 0:
			return no
		case w.known[i] != 0xff:
			result = maybe
		}
	}
	return result
}

// value is what a register may have: one of the words, or anything if there are none, but nothing that begins
// with one of never.
type value struct {
	words []word
	never []prefix
	cut   int // how many bits of it are left, 0 for all
}

// prefix are the first bits of a value.
type prefix struct {
	bits []byte
	len  int
}

// begins reports whether some bits begin with the prefix.
func (p prefix) begins(data []byte, bits int) bool {
	if bits < p.len {
		return false
	}
	whole, rest := p.len/8, p.len%8
	return bytes.Equal(data[:whole], p.bits[:whole]) &&
		(rest == 0 || (data[whole]^p.bits[whole])>>(8-rest) == 0)
}

// anything is the value of which nothing is known.
var anything value

// equals reports whether a value is data, or begins with it.
func (v value) equals(data []byte) truth {
	bits := 8 * len(data)
	if v.cut > 0 {
		bits = min(bits, v.cut)
	}
	for _, n := range v.never {
		if n.begins(data, bits) {
			return no
		}
	}
	return v.all(func(w word) truth { return w.equals(data) })
}

// all says what holds for every word that the value may be.
func (v value) all(holds func(word) truth) truth {
	if len(v.words) == 0 {
		return maybe
	}
	result := holds(v.words[0])
	for _, w := range v.words[1:] {
		if holds(w) != result {
			return maybe
		}
	}
	return result
}

// masked is the value after a bitwise operation of nf_tables.
func (v value) masked(mask, xor []byte) value {
	if len(v.never) > 0 {
		ones := leadingOnes(mask)
		if ones < 0 || !bytes.Equal(xor, make([]byte, len(xor))) {
			return anything
		}
		return value{never: v.never, cut: ones}
	}
	words := v.words
	if len(words) == 0 {
		words = []word{{make([]byte, len(mask)), make([]byte, len(mask))}}
	}
	var result value
	for _, w := range words {
		m := word{make([]byte, len(mask)), make([]byte, len(mask))}
		for i := range mask {
			if i < len(w.bits) {
				m.bits[i], m.known[i] = w.bits[i]&mask[i]^xor[i], w.known[i]|^mask[i]
			}
		}
		result.words = append(result.words, m)
	}
	return result
}

// leadingOnes returns how many bits of a mask are set, -1 unless they are the first ones.
func leadingOnes(mask []byte) int {
	ones, _ := net.IPMask(mask).Size()
	if ones == 0 {
		return -1
	}
	return ones
}

// marked are the packets that begin connections to endpoints on this node: they have come in by one of the
// devices that Beeline serves, from clients that are neither pods nor Services, were translated, got
// [ForwardMark], and leave by another device.
type marked struct {
	ipv6    bool
	devices map[string]int // that are served: name → index
	cluster []netip.Prefix // addresses of pods and Services
}

// payload is what nf_tables' expression payload loads: the beginning of the source address, or what is not known.
func (p *marked) payload(e *expr.Payload) value {
	offset, size := uint32(12), uint32(4)
	if p.ipv6 {
		offset, size = 8, 16
	}
	if e.Base != expr.PayloadBaseNetworkHeader || e.Offset != offset || e.Len > size {
		return anything
	}
	var client value
	for _, r := range p.cluster {
		if r.Addr().Is6() == p.ipv6 && r.Bits() > 0 {
			client.never = append(client.never, prefix{r.Addr().AsSlice(), r.Bits()})
		}
	}
	return client
}

// meta is what nf_tables' expression meta loads.
func (p *marked) meta(key expr.MetaKey) value {
	switch key {
	case expr.MetaKeyMARK:
		mark := binaryutil.NativeEndian.PutUint32(ForwardMark)
		return value{words: []word{{mark, mark}}}
	case expr.MetaKeyNFPROTO:
		if p.ipv6 {
			return value{words: []word{exactly([]byte{unix.NFPROTO_IPV6})}}
		}
		return value{words: []word{exactly([]byte{unix.NFPROTO_IPV4})}}
	case expr.MetaKeyL4PROTO:
		return value{words: []word{exactly([]byte{unix.IPPROTO_TCP}), exactly([]byte{unix.IPPROTO_UDP}), exactly([]byte{unix.IPPROTO_SCTP})}}
	case expr.MetaKeyIIF, expr.MetaKeyIIFNAME:
		var in value
		for _, d := range p.served(key == expr.MetaKeyIIF) {
			in.words = append(in.words, exactly(d))
		}
		return in
	case expr.MetaKeyOIF, expr.MetaKeyOIFNAME:
		var out value
		for _, d := range p.served(key == expr.MetaKeyOIF) {
			out.never = append(out.never, prefix{d, 8 * len(d)})
		}
		return out
	}
	return anything
}

// served are the devices that Beeline serves as nf_tables compares them: by index or by name.
func (p *marked) served(byIndex bool) (list [][]byte) {
	for name, index := range p.devices {
		if byIndex {
			list = append(list, binaryutil.NativeEndian.PutUint32(uint32(index)))
			continue
		}
		padded := make([]byte, unix.IFNAMSIZ)
		copy(padded, name)
		list = append(list, padded)
	}
	return list
}

// ct is what nf_tables' expression ct loads.
func (p *marked) ct(key expr.CtKey) value {
	native := binaryutil.NativeEndian.PutUint32
	switch key {
	case expr.CtKeySTATE:
		return value{words: []word{exactly(native(expr.CtStateBitNEW)), exactly(native(expr.CtStateBitUNTRACKED))}}
	case expr.CtKeySTATUS:
		// IPS_EXPECTED to IPS_DST_NAT of nf_conntrack_common.h: none, for netfilter translates nothing. Others are
		// set by the hooks that these packets have passed.
		const none = 1<<6 - 1
		return value{words: []word{{native(0), native(none)}}}
	}
	return anything
}
