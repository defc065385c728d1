package servicemap

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// firstAlgorithm has number 0 in enum bl_algorithm.
const firstAlgorithm = model.Random

// The numbers of pkg/tables and pkg/policy are those of the C enums: an index out
// of range here is a difference.
var (
	_ = [1]int{}[bpf.SockBlFrontendKindBL_FRONTEND_CLUSTER_IP-bpf.SockBlFrontendKind(tables.FrontendClusterIP)]
	_ = [1]int{}[bpf.SockBlFrontendKindBL_FRONTEND_NODE_PORT-bpf.SockBlFrontendKind(tables.FrontendNodePort)]
	_ = [1]int{}[bpf.SockBlFrontendKindBL_FRONTEND_EXTERNAL_IP-bpf.SockBlFrontendKind(tables.FrontendExternalIP)]
	_ = [1]int{}[bpf.SockBlFrontendKindBL_FRONTEND_LOAD_BALANCER-bpf.SockBlFrontendKind(tables.FrontendLoadBalancer)]
	_ = [1]int{}[bpf.SockBlFrontendKindBL_FRONTEND_ADDRESS-bpf.SockBlFrontendKind(tables.FrontendAddress)]
	_ = [1]int{}[bpf.SockBlFrontendFlagBL_FRONTEND_INTERNAL_LOCAL-bpf.SockBlFrontendFlag(tables.InternalLocal)]
	_ = [1]int{}[bpf.SockBlFrontendFlagBL_FRONTEND_EXTERNAL_LOCAL-bpf.SockBlFrontendFlag(tables.ExternalLocal)]
	_ = [1]int{}[bpf.SockBlFrontendFlagBL_FRONTEND_SOURCE_RANGES-bpf.SockBlFrontendFlag(tables.SourceRanges)]
	_ = [1]int{}[bpf.SockBlFrontendFlagBL_FRONTEND_REFUSE_OTHERS-bpf.SockBlFrontendFlag(tables.RefuseOthers)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_CLUSTER-bpf.SockBlBackendState(tables.InCluster)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_LOCAL-bpf.SockBlBackendState(tables.InLocal)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_READY-bpf.SockBlBackendState(tables.Ready)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_SERVING-bpf.SockBlBackendState(tables.Serving)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_TERMINATING-bpf.SockBlBackendState(tables.Terminating)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_ON_NODE-bpf.SockBlBackendState(tables.OnNode)]
	_ = [1]int{}[bpf.SockBlBackendStateBL_BACKEND_NO_NEW-bpf.SockBlBackendState(tables.NoNew)]
	_ = [1]int{}[bpf.SockBlGenerationBitsBL_GENERATION_USER+1-tables.ComeBack]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_RANDOM-bpf.SockBlAlgorithm(model.Random-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_ROUND_ROBIN-bpf.SockBlAlgorithm(model.RoundRobin-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_WEIGHTED_ROUND_ROBIN-bpf.SockBlAlgorithm(model.WeightedRoundRobin-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_SOURCE_HASH-bpf.SockBlAlgorithm(model.SourceHash-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_DESTINATION_HASH-bpf.SockBlAlgorithm(model.DestinationHash-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_MAGLEV-bpf.SockBlAlgorithm(model.Maglev-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_LEAST_CONN-bpf.SockBlAlgorithm(model.LeastConn-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_WEIGHTED_LEAST_CONN-bpf.SockBlAlgorithm(model.WeightedLeastConn-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_SHORTEST_DELAY-bpf.SockBlAlgorithm(model.ShortestDelay-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_NEVER_QUEUE-bpf.SockBlAlgorithm(model.NeverQueue-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_LOCALITY-bpf.SockBlAlgorithm(model.Locality-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_LOCALITY_REPLICATED-bpf.SockBlAlgorithm(model.LocalityReplicated-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_EWMA-bpf.SockBlAlgorithm(model.EWMA-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlAlgorithmBL_ALGORITHM_COUNTED_RANDOM-bpf.SockBlAlgorithm(model.CountedRandom-firstAlgorithm)]
	_ = [1]int{}[bpf.SockBlSetKindBL_SET_REJECT-bpf.SockBlSetKind(policy.Reject)]
	_ = [1]int{}[bpf.SockBlSetKindBL_SET_DROP-bpf.SockBlSetKind(policy.Drop)]
	_ = [1]int{}[bpf.SockBlSetKindBL_SET_BACKENDS-bpf.SockBlSetKind(policy.Backends)]
)

// frontendKey returns the key as the programs look it up.
func frontendKey(k tables.FrontendKey) bpf.SockBlFrontendKey {
	addr := bpf.AddrOf(k.Addr)
	return bpf.SockBlFrontendKey{Addr: addr, Port: bpf.Hton16(k.Port), Proto: uint8(k.Protocol)}
}

// frontendKeyOf is the opposite of frontendKey.
func frontendKeyOf(k *bpf.SockBlFrontendKey) tables.FrontendKey {
	return tables.FrontendKey{Addr: k.Addr.Netip(), Port: bpf.Hton16(k.Port), Protocol: model.Protocol(k.Proto)}
}

func setWord(s tables.Set) uint64 {
	return uint64(s.First) |
		uint64(s.Count)<<bpf.SockBlSetBitsBL_SET_COUNT_SHIFT |
		uint64(s.Kind)<<bpf.SockBlSetBitsBL_SET_KIND_SHIFT
}

func setOf(word uint64) tables.Set {
	return tables.Set{
		Kind:  policy.Kind(word >> bpf.SockBlSetBitsBL_SET_KIND_SHIFT),
		First: uint32(word),
		Count: uint32(word>>bpf.SockBlSetBitsBL_SET_COUNT_SHIFT) & (1<<bpf.SockBlSetBitsBL_SET_COUNT_BITS - 1),
	}
}

// algorithmNumber returns the number of an algorithm; the programs know no default.
func algorithmNumber(a model.Algorithm) uint16 {
	return uint16(cmp.Or(a, firstAlgorithm) - firstAlgorithm)
}

func algorithmOf(number uint16) model.Algorithm { return firstAlgorithm + model.Algorithm(number) }

func srcrangeKey(r tables.SourceRange) bpf.SockBlSrcrangeKey {
	return bpf.SockBlSrcrangeKey{
		PrefixLen: 32 + bpf.PrefixBits(r.Prefix),
		Service:   r.Service,
		Addr:      bpf.AddrOf(r.Prefix.Masked().Addr()),
	}
}

// mask returns the network mask of an IPv6 prefix, or of an IPv4 one in the last
// four bytes.
func mask(p netip.Prefix) bpf.SockBlAddr {
	var m bpf.SockBlAddr
	for i := range bpf.PrefixBits(p) {
		m.Byte[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// word returns the last four bytes as the programs load them.
func word(a bpf.SockBlAddr) uint32 { return binary.NativeEndian.Uint32(a.Byte[12:]) }

func nameEntry(n tables.ServiceName) bpf.SockBlServiceNameEntry {
	e := bpf.SockBlServiceNameEntry{
		Port:          n.Number,
		NodePort:      n.NodePort,
		Proto:         uint8(n.Port.Protocol),
		Family:        uint8(n.Family),
		InternalLocal: flag(n.InternalLocal),
		ExternalLocal: flag(n.ExternalLocal),
		Bound:         n.Bound,
		Cut:           uint8(n.Cut),
	}
	bpf.PutString(e.Namespace[:], n.Port.Service.Namespace)
	bpf.PutString(e.Name[:], n.Port.Service.Name)
	bpf.PutString(e.PortName[:], n.Port.Port)
	bpf.PutString(e.Type[:], n.Type)
	return e
}

func serviceNameOf(e *bpf.SockBlServiceNameEntry) tables.ServiceName {
	return tables.ServiceName{
		Port: model.PortName{
			Service:  model.Name{Namespace: bpf.StringOf(e.Namespace[:]), Name: bpf.StringOf(e.Name[:])},
			Port:     bpf.StringOf(e.PortName[:]),
			Protocol: model.Protocol(e.Proto),
		},
		Family:        model.Family(e.Family),
		Type:          bpf.StringOf(e.Type[:]),
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
