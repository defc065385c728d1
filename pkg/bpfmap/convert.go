package bpfmap

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// firstAlgorithm has number 0 in enum bl_algorithm.
const firstAlgorithm = model.Random

// The numbers of pkg/tables and pkg/policy are those of the C enums: an index out
// of range here is a difference.
var (
	_ = [1]int{}[sockBlFrontendKindBL_FRONTEND_CLUSTER_IP-sockBlFrontendKind(tables.FrontendClusterIP)]
	_ = [1]int{}[sockBlFrontendKindBL_FRONTEND_NODE_PORT-sockBlFrontendKind(tables.FrontendNodePort)]
	_ = [1]int{}[sockBlFrontendKindBL_FRONTEND_EXTERNAL_IP-sockBlFrontendKind(tables.FrontendExternalIP)]
	_ = [1]int{}[sockBlFrontendKindBL_FRONTEND_LOAD_BALANCER-sockBlFrontendKind(tables.FrontendLoadBalancer)]
	_ = [1]int{}[sockBlFrontendKindBL_FRONTEND_ADDRESS-sockBlFrontendKind(tables.FrontendAddress)]
	_ = [1]int{}[sockBlFrontendFlagBL_FRONTEND_INTERNAL_LOCAL-sockBlFrontendFlag(tables.InternalLocal)]
	_ = [1]int{}[sockBlFrontendFlagBL_FRONTEND_EXTERNAL_LOCAL-sockBlFrontendFlag(tables.ExternalLocal)]
	_ = [1]int{}[sockBlFrontendFlagBL_FRONTEND_SOURCE_RANGES-sockBlFrontendFlag(tables.SourceRanges)]
	_ = [1]int{}[sockBlFrontendFlagBL_FRONTEND_REFUSE_OTHERS-sockBlFrontendFlag(tables.RefuseOthers)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_CLUSTER-sockBlBackendState(tables.InCluster)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_LOCAL-sockBlBackendState(tables.InLocal)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_READY-sockBlBackendState(tables.Ready)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_SERVING-sockBlBackendState(tables.Serving)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_TERMINATING-sockBlBackendState(tables.Terminating)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_ON_NODE-sockBlBackendState(tables.OnNode)]
	_ = [1]int{}[sockBlBackendStateBL_BACKEND_NO_NEW-sockBlBackendState(tables.NoNew)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_RANDOM-sockBlAlgorithm(model.Random-firstAlgorithm)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_ROUND_ROBIN-sockBlAlgorithm(model.RoundRobin-firstAlgorithm)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_WEIGHTED_ROUND_ROBIN-sockBlAlgorithm(model.WeightedRoundRobin-firstAlgorithm)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_SOURCE_HASH-sockBlAlgorithm(model.SourceHash-firstAlgorithm)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_DESTINATION_HASH-sockBlAlgorithm(model.DestinationHash-firstAlgorithm)]
	_ = [1]int{}[sockBlAlgorithmBL_ALGORITHM_MAGLEV-sockBlAlgorithm(model.Maglev-firstAlgorithm)]
	_ = [1]int{}[sockBlSetKindBL_SET_REJECT-sockBlSetKind(policy.Reject)]
	_ = [1]int{}[sockBlSetKindBL_SET_DROP-sockBlSetKind(policy.Drop)]
	_ = [1]int{}[sockBlSetKindBL_SET_BACKENDS-sockBlSetKind(policy.Backends)]
)

// addrOf stores an address v4-mapped, in network byte order.
func addrOf(a netip.Addr) sockBlAddr { return sockBlAddr{Byte: a.As16()} }

func (a sockBlAddr) netip() netip.Addr { return netip.AddrFrom16(a.Byte).Unmap() }

// hton16 converts a port between host and network byte order, either way.
func hton16(port uint16) uint16 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return port
	}
	return bits.ReverseBytes16(port)
}

// frontendKey returns the key as the programs look it up.
func frontendKey(k tables.FrontendKey) sockBlFrontendKey {
	addr := addrOf(k.Addr)
	return sockBlFrontendKey{Addr: addr, Port: hton16(k.Port), Proto: uint8(k.Protocol)}
}

func (k sockBlFrontendKey) tables() tables.FrontendKey {
	return tables.FrontendKey{Addr: k.Addr.netip(), Port: hton16(k.Port), Protocol: model.Protocol(k.Proto)}
}

func setWord(s tables.Set) uint64 {
	return uint64(s.First) |
		uint64(s.Count)<<sockBlSetBitsBL_SET_COUNT_SHIFT |
		uint64(s.Kind)<<sockBlSetBitsBL_SET_KIND_SHIFT
}

func setOf(word uint64) tables.Set {
	return tables.Set{
		Kind:  policy.Kind(word >> sockBlSetBitsBL_SET_KIND_SHIFT),
		First: uint32(word),
		Count: uint32(word>>sockBlSetBitsBL_SET_COUNT_SHIFT) & (1<<sockBlSetBitsBL_SET_COUNT_BITS - 1),
	}
}

// algorithmNumber returns the number of an algorithm; the programs know no default.
func algorithmNumber(a model.Algorithm) uint16 {
	return uint16(cmp.Or(a, firstAlgorithm) - firstAlgorithm)
}

func algorithmOf(number uint16) model.Algorithm { return firstAlgorithm + model.Algorithm(number) }

// prefixBits returns the length of a prefix over the v4-mapped form.
func prefixBits(p netip.Prefix) uint32 {
	if p.Addr().Is4() {
		return uint32(p.Bits()) + 96
	}
	return uint32(p.Bits())
}

func prefixOf(addr sockBlAddr, length uint32) netip.Prefix {
	a := addr.netip()
	if a.Is4() {
		length -= 96
	}
	return netip.PrefixFrom(a, int(length))
}

func srcrangeKey(r tables.SourceRange) sockBlSrcrangeKey {
	return sockBlSrcrangeKey{
		PrefixLen: 32 + prefixBits(r.Prefix),
		Service:   r.Service,
		Addr:      addrOf(r.Prefix.Masked().Addr()),
	}
}

func cidrKey(p netip.Prefix) sockBlCidrKey {
	return sockBlCidrKey{PrefixLen: prefixBits(p), Addr: addrOf(p.Masked().Addr())}
}

// mask returns the network mask of an IPv6 prefix, or of an IPv4 one in the last
// four bytes.
func mask(p netip.Prefix) sockBlAddr {
	var m sockBlAddr
	for i := range prefixBits(p) {
		m.Byte[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// word returns the last four bytes as the programs load them.
func word(a sockBlAddr) uint32 { return binary.NativeEndian.Uint32(a.Byte[12:]) }

// putString stores s, cut to what fits, with a zero byte after it.
func putString(to []int8, s string) {
	clear(to)
	for i := range min(len(s), len(to)-1) {
		to[i] = int8(s[i])
	}
}

func stringOf(from []int8) string {
	b := make([]byte, 0, len(from))
	for _, c := range from {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

func nameEntry(n tables.ServiceName) sockBlServiceNameEntry {
	e := sockBlServiceNameEntry{
		Port:          n.Number,
		NodePort:      n.NodePort,
		Proto:         uint8(n.Port.Protocol),
		Family:        uint8(n.Family),
		InternalLocal: flag(n.InternalLocal),
		ExternalLocal: flag(n.ExternalLocal),
		Bound:         n.Bound,
		Cut:           uint8(n.Cut),
	}
	putString(e.Namespace[:], n.Port.Service.Namespace)
	putString(e.Name[:], n.Port.Service.Name)
	putString(e.PortName[:], n.Port.Port)
	putString(e.Type[:], n.Type)
	return e
}

func (e *sockBlServiceNameEntry) tables() tables.ServiceName {
	return tables.ServiceName{
		Port: model.PortName{
			Service:  model.Name{Namespace: stringOf(e.Namespace[:]), Name: stringOf(e.Name[:])},
			Port:     stringOf(e.PortName[:]),
			Protocol: model.Protocol(e.Proto),
		},
		Family:        model.Family(e.Family),
		Type:          stringOf(e.Type[:]),
		Number:        e.Port,
		NodePort:      e.NodePort,
		InternalLocal: e.InternalLocal != 0,
		ExternalLocal: e.ExternalLocal != 0,
		Bound:         e.Bound,
		Cut:           tables.Cut(e.Cut),
	}
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
