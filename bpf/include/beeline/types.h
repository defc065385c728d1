/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The keys and values of every map, which the programs and the agent share. The Go
 * types are generated from this file.
 *
 * A change of a layout or of a number here is a new layout of each map that has it, which the
 * agent makes from the former one (pkg/bpfmap/layout.go); of bl_sock, which nobody can read as a
 * whole, or of what all maps have in common, it is a new schema (BL_SCHEMA): nothing is taken over.
 */
#pragma once

#include <linux/types.h>

enum bl_schema {
	BL_SCHEMA = 2,
};

/* For values that are read or written in halves of an address. */
#define BL_ALIGNED __attribute__((aligned(8)))

/*
 * An IPv6 address in network byte order. IPv4 is stored v4-mapped
 * (::ffff:a.b.c.d), so that both families share every table.
 */
union bl_addr {
	__u8 byte[16];
	__be32 word[4];
};
_Static_assert(sizeof(union bl_addr) == 16, "bl_addr");

/* How many entries one chunk of a growable table holds; see table.h. */
enum bl_chunk {
	BL_CHUNK_SHIFT = 12,
	BL_CHUNK_SIZE = 1 << BL_CHUNK_SHIFT,
	BL_LINE_SHIFT = 4,
	/* backend ids in one entry of a slot chunk */
	BL_LINE_SIZE = 1 << BL_LINE_SHIFT,
	BL_SLOT_CHUNK_SHIFT = 10,
	/* entries (lines) of a slot chunk */
	BL_SLOT_CHUNK_SIZE = 1 << BL_SLOT_CHUNK_SHIFT,
};

/* bl_frontend: what an application can connect to. */

struct bl_frontend_key {
	/* For a NodePort the any-address of the family: all node addresses. */
	union bl_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct bl_frontend_key) == 20, "bl_frontend_key");

enum bl_frontend_kind {
	BL_FRONTEND_NONE,
	BL_FRONTEND_CLUSTER_IP,
	BL_FRONTEND_NODE_PORT,
	BL_FRONTEND_EXTERNAL_IP,
	BL_FRONTEND_LOAD_BALANCER,
	/* Port and protocol 0: an address of a Service, whatever its ports. */
	BL_FRONTEND_ADDRESS,
};

enum bl_frontend_flag {
	/* Clients inside the cluster get the local set. */
	BL_FRONTEND_INTERNAL_LOCAL = 1 << 0,
	/* Clients outside the cluster get the local set. */
	BL_FRONTEND_EXTERNAL_LOCAL = 1 << 1,
	/* Only sources in bl_srcrange are let in. */
	BL_FRONTEND_SOURCE_RANGES = 1 << 2,
	/* Of an address that no host has, a ClusterIP: ports that are no frontends are refused, and
	 * echo requests answered. */
	BL_FRONTEND_REFUSE_OTHERS = 1 << 3,
};

/*
 * One word, read by one load. The kernel may give the memory of a deleted hash
 * entry to another key while a program still looks at it; @check, a digest of
 * the key, tells such a value from the one that was looked up.
 */
struct bl_frontend_entry {
	__u32 service;
	__u8 kind;
	__u8 flags;
	__u16 check; /* digest of the key */
};
_Static_assert(sizeof(struct bl_frontend_entry) == 8, "bl_frontend_entry");

/*
 * A set of backends: the word that an endpoint change replaces by one store.
 * Bits 0-31 hold the first slot, bits 32-55 the number of slots, bits 56-63 the
 * kind. A zero word is a set that rejects.
 */
enum bl_set_bits {
	BL_SET_COUNT_SHIFT = 32,
	BL_SET_COUNT_BITS = 24,
	BL_SET_KIND_SHIFT = 56,
};

enum bl_set_kind {
	/* No endpoint may serve: TCP reset, port unreachable, ECONNREFUSED. */
	BL_SET_REJECT,
	/* No endpoint on this node may serve: no answer, EHOSTUNREACH at a socket. */
	BL_SET_DROP,
	BL_SET_BACKENDS,
};

/* How the slot for a new connection is found. */
enum bl_algorithm {
	BL_ALGORITHM_RANDOM,
	BL_ALGORITHM_ROUND_ROBIN, /* one slot after the other */
	BL_ALGORITHM_WEIGHTED_ROUND_ROBIN, /* likewise, of slots filled by weight */
	BL_ALGORITHM_SOURCE_HASH,
	BL_ALGORITHM_DESTINATION_HASH,
	/* By addresses and ports; packets within a connection reach their backend by it. */
	BL_ALGORITHM_MAGLEV,
	/* From here on active connections are counted, for no other Service, and most choose by them. */
	BL_ALGORITHM_LEAST_CONN, /* the fewest */
	BL_ALGORITHM_WEIGHTED_LEAST_CONN, /* the fewest for the weight */
	BL_ALGORITHM_SHORTEST_DELAY, /* likewise, the new connection among them */
	BL_ALGORITHM_NEVER_QUEUE, /* an idle backend; else as by BL_ALGORITHM_SHORTEST_DELAY */
	BL_ALGORITHM_LOCALITY, /* the same backend until it is overloaded */
	BL_ALGORITHM_LOCALITY_REPLICATED, /* likewise, of several that become more and less */
	/* Of two at random, the one of less round-trip time times connections. */
	BL_ALGORITHM_EWMA,
	BL_ALGORITHM_COUNTED_RANDOM, /* as BL_ALGORITHM_RANDOM: the agent wants the counts */
};

/* How a packet reaches a backend on another node. */
enum bl_forwarding {
	BL_FORWARDING_SNAT, /* from an address of this node, to which the backend answers */
	/* As it is, in a tunnel to the backend's node, which answers the client itself. */
	BL_FORWARDING_DSR,
};

/* One family of one Service port. */
struct bl_service_entry {
	__u64 cluster; /* set word */
	__u64 local; /* set word */
	__u32 affinity; /* seconds; 0 is none */
	__u16 algorithm; /* enum bl_algorithm */
	__u16 forwarding; /* enum bl_forwarding */
	__u32 outliers; /* bl_outlier counts connections that fail; 0: it does not */
	__u32 trial; /* 1 + the id of the backend that gets one connection; 0: none, bl_outlier_try */
};
_Static_assert(sizeof(struct bl_service_entry) == 32, "bl_service_entry");

/*
 * The names of a Service port, for a new agent, which finds ids by them, and for the
 * command line. The programs do not read them. A zero family marks an id that is not
 * in use. Strings end with a zero byte.
 */
struct bl_service_name_entry {
	char namespace[64];
	char name[64];
	char port_name[64];
	char type[16];
	__u16 port;
	__u16 node_port;
	__u8 proto;
	__u8 family; /* 4, 6; 0 is unused */
	__u8 internal_local;
	__u8 external_local;
	__u32 bound; /* slots that a set may take, which asks for more; 0 is none */
	__u8 cut; /* by bits: of which tables the Service gets less than it asks for */
	__u8 pad[3];
};
_Static_assert(sizeof(struct bl_service_name_entry) == 224, "bl_service_name_entry");

/* A Service that could not be written in full, for display. */
struct bl_unapplied_key {
	char namespace[64];
	char name[64];
};

struct bl_unapplied_entry {
	__u64 since; /* ns since 1970 */
	__u64 next; /* when it is tried again; ns since 1970 */
	__u32 tries;
	char error[492]; /* its beginning */
};
_Static_assert(sizeof(struct bl_unapplied_entry) == 512, "bl_unapplied_entry");

struct bl_service_stat_entry {
	__u64 connections; /* backends chosen for a new connection or UDP peer */
	__u64 refused; /* rejected or dropped */
	__u64 dropped; /* of those: the client is told nothing */
};

enum bl_backend_state {
	/* Which sets of its Service the backend is in. In none, it keeps what it serves. */
	BL_BACKEND_CLUSTER = 1 << 0,
	BL_BACKEND_LOCAL = 1 << 1,
	/* For display: the endpoint's conditions. */
	BL_BACKEND_READY = 1 << 2,
	BL_BACKEND_SERVING = 1 << 3,
	BL_BACKEND_TERMINATING = 1 << 4,
	/* The endpoint is on this node, as its object says; see BL_DEVICE_ALL_PODS. */
	BL_BACKEND_ON_NODE = 1 << 5,
	/* Gets no new connections: affinity does not lead to it any more. */
	BL_BACKEND_NO_NEW = 1 << 6,
};

/* What is noted of a socket with the set that its backend was chosen from. */
enum bl_member_bits {
	BL_MEMBER_FOLLOWED = 1 << 6, /* bl_sockops tells its end */
	BL_MEMBER_COUNTED = 1 << 7, /* bl_active counts it */
};

/*
 * A backend's generation: its lower half tells the users of an id apart, the upper one how often
 * the user has come back to a set that it had left.
 */
enum bl_generation_bits {
	BL_GENERATION_USER_BITS = 16,
	BL_GENERATION_USER = (1 << 16) - 1,
};

/*
 * One endpoint of one family of one Service port. An id lives from when the endpoint comes into a
 * set until it serves no more. An endpoint that comes back then has a new user's generation, so
 * all references to the former one are void; one that comes back to a set while it has served on
 * keeps what goes by the user alone.
 */
struct bl_backend_entry {
	union bl_addr addr;
	__be16 port;
	__u16 weight; /* by which active connections are weighed; the slots follow from it */
	__u32 service;
	__u16 state; /* enum bl_backend_state; 0 is not in use */
	__u16 node; /* index in bl_node of the backend's node; 0 is unknown */
	__u32 generation;
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_backend_entry) == 32, "bl_backend_entry");

/* What connections are counted as: each by what sees it end. */
enum bl_active_kind {
	BL_ACTIVE_SOCKETS, /* from connect() until the socket is closed or connects again */
	BL_ACTIVE_FLOWS, /* of packets, until the flow closes or is removed; see bl_flow_active */
	BL_ACTIVE_KINDS,
};

/*
 * The active connections of a backend. A word has the backend's generation in its upper
 * half and their number in the lower one; what another user of the id has counted is void.
 */
struct bl_active_entry {
	__u64 word[BL_ACTIVE_KINDS];
	__u32 begun; /* flows that were counted or about to be, ever; wraps */
	__u32 noted_of; /* the generation of which @noted is; inverted by BL_ALGORITHM_EWMA */
	/*
	 * CLOCK_MONOTONIC, ns; 0 is never. When BL_ALGORITHM_LOCALITY has chosen the backend
	 * last, or it has become one of the servers of BL_ALGORITHM_LOCALITY_REPLICATED.
	 * By BL_ALGORITHM_EWMA in its lower half the round-trip time, in an eighth of a
	 * microsecond, and in the upper one since when it is, in BL_EWMA_UNIT.
	 */
	__u64 noted;
};
_Static_assert(sizeof(struct bl_active_entry) == 32, "bl_active_entry");

/* The average of BL_ALGORITHM_EWMA. */
enum bl_ewma_limits {
	BL_EWMA_UNIT = 30, /* of time: 2^30 ns */
	BL_EWMA_HALVING = 3, /* what is known halves every 2^3 of them */
	BL_EWMA_GAIN = 2, /* a connection that has ended counts for a 2^2th of what is known */
	BL_EWMA_MOST = (1 << 24) - 1, /* 2 s: of a connection that has failed, too */
};

/*
 * Outlier detection of a backend. Programs count, the agent ejects and lets in again. What another
 * user of the id has left is void.
 */
struct bl_outlier_entry {
	__u32 generation; /* of the backend that the rest is of */
	__u32 failures; /* connections in a row that failed; enum bl_outlier_trial */
	__u32 until; /* it is ejected, at least to this second of CLOCK_MONOTONIC; 0: it is not */
	__u32 times; /* it has been ejected, and not served well since */
};
_Static_assert(sizeof(struct bl_outlier_entry) == 16, "bl_outlier_entry");

/* Bits of failures, while the backend is ejected and its time is over. */
enum bl_outlier_trial {
	BL_TRIAL_TAKEN = 1 << 30, /* a connection has been sent to it */
	BL_TRIAL_OFFERED = 1U << 31, /* the next one is */
};

enum bl_traffic_kind {
	BL_TRAFFIC_SERVICE,
	BL_TRAFFIC_BACKEND,
};

/* What packets and bytes are counted of, on each CPU; see bl_traffic_sampling. */
struct bl_traffic_key {
	__u32 kind; /* enum bl_traffic_kind */
	__u32 id;
};
_Static_assert(sizeof(struct bl_traffic_key) == 8, "bl_traffic_key");

/* As estimated for all flows. Bytes count from the IP header on. */
struct bl_traffic_entry {
	struct bl_volume {
		__u64 packets;
		__u64 bytes;
	} to_backend, to_client;
};

/* An entry of a slot chunk: the ids of BL_LINE_SIZE neighbouring slots. */
struct bl_slot_line {
	__u32 backend[BL_LINE_SIZE];
};
_Static_assert(sizeof(struct bl_slot_line) == 64, "bl_slot_line");

/* A backend as it is remembered: see bl_backend_recall and bl_backend_serving. */
struct bl_backend_ref {
	__u32 id;
	__u32 generation;
};

/*
 * Session affinity of sockets. The client is the network namespace: a pod has one
 * address. Eight bytes of key are found a sixth faster than twenty.
 */
struct bl_affinity_key {
	__u32 netns; /* low half of its cookie, which counts from 1 */
	__u32 service;
};
_Static_assert(sizeof(struct bl_affinity_key) == 8, "bl_affinity_key");

/* Session affinity of packets. */
struct bl_client_key {
	union bl_addr client;
	__u32 service;
};
_Static_assert(sizeof(struct bl_client_key) == 20, "bl_client_key");

struct bl_affinity_entry {
	struct bl_backend_ref backend;
	__u64 last_used; /* CLOCK_MONOTONIC_COARSE, ns */
};

/*
 * The Service that a socket is connected to, or that it first sent to unconnected, and the
 * backend that was selected. Only programs that hold the socket's lock write it.
 */
struct bl_sock_entry {
	union bl_addr vip;
	union bl_addr addr; /* of the backend */
	struct bl_backend_ref backend;
	__u64 last_used; /* CLOCK_MONOTONIC_COARSE, ns; but for BL_SOCK_CONNECTED */
	__u32 owner; /* bl_udp_sock: upper part of the socket's cookie, plus 1; 0 is free */
	__u32 service;
	__be16 vip_port; /* 0: there is no Service */
	__be16 port; /* of the backend */
	__u8 state; /* enum bl_sock_state */
	/* The set it was chosen from, BL_BACKEND_CLUSTER or _LOCAL, which programs of former
	 * versions look at; and enum bl_member_bits. */
	__u8 member;
	__u8 spilled; /* bl_udp_peer has, or had, more of the socket */
	/* bl_udp_sock: the entry of another socket with this place is, or was, in bl_sock */
	__u8 shared;
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_sock_entry) == 64, "bl_sock_entry");

enum bl_sock_state {
	BL_SOCK_UNCONNECTED, /* it has sent to the Service */
	/* It has since sent to the backend itself: replies show the backend's address. */
	BL_SOCK_HIDDEN,
	BL_SOCK_CONNECTED,
};

/*
 * A network namespace that translates its own connections (nat OUTPUT), and the node's side of
 * its devices, where its packets are served: its sockets are left alone.
 */
enum bl_nat_limit {
	BL_NAT_DEVICES = 4,
};

struct bl_nat_entry {
	__u32 ifindex
		[BL_NAT_DEVICES]; /* 0: none; all 0: no device serves it, so its sockets are served */
};
_Static_assert(sizeof(struct bl_nat_entry) == 16, "bl_nat_entry");

/* A packet to a Service that has come from the address @addr by the device @ifindex. */
struct bl_sandbox_packet {
	union bl_addr addr;
	__u32 ifindex;
	__u8 pad[4];
};
_Static_assert(sizeof(struct bl_sandbox_packet) == 24, "bl_sandbox_packet");

/* bl_udp_sock: the low bits of a socket's cookie are the index of its place. */
enum bl_udp_sock_size {
	BL_UDP_SOCK_SHIFT = 16,
	BL_UDP_SOCK_SIZE = 1 << BL_UDP_SOCK_SHIFT,
};

/*
 * A UDP socket and one more Service that it sends to unconnected. Each translation has
 * two entries: under the Service address (the destination of datagrams) and under the
 * backend's address (the source that is shown of a reply).
 */
enum bl_udp_direction {
	BL_UDP_FORWARD,
	BL_UDP_REPLY,
};

struct bl_udp_peer_key {
	__u64 cookie;
	union bl_addr addr;
	__be16 port;
	__u16 direction;
	__u32 pad;
};
_Static_assert(sizeof(struct bl_udp_peer_key) == 32, "bl_udp_peer_key");

struct bl_udp_peer_entry {
	union bl_addr addr; /* the other side of the translation */
	__be16 port;
	__u16 member; /* the set it was chosen from, as of bl_sock_entry */
	__u32 pad;
	struct bl_backend_ref backend;
	__u64 last_used; /* CLOCK_MONOTONIC_COARSE, ns */
};
_Static_assert(sizeof(struct bl_udp_peer_entry) == 40, "bl_udp_peer_entry");

/* A query of the agent to bl_udp_service: a connected UDP socket. */
struct bl_udp_query {
	__u8 ethernet[16]; /* zero: a test run takes it for a packet's header */
	__u64 cookie;
	union bl_addr local;
	union bl_addr peer;
	__be16 local_port;
	__be16 peer_port;
	__u32 pad;
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_udp_query) == 64, "bl_udp_query");

/* Its answers other than the id of a Service. */
enum bl_udp_answer {
	BL_UDP_NO_SERVICE = 0xffffffff,
};

/* bl_srcrange: the prefix covers the Service id and the first bits of addr. */
struct bl_srcrange_key {
	__u32 prefix_len; /* 32 + bits of addr */
	__u32 service;
	union bl_addr addr;
};
_Static_assert(sizeof(struct bl_srcrange_key) == 24, "bl_srcrange_key");

struct bl_cidr_key {
	__u32 prefix_len; /* bits of addr */
	union bl_addr addr;
};
_Static_assert(sizeof(struct bl_cidr_key) == 20, "bl_cidr_key");

/* bl_endpoint: an endpoint on this node, of one family of one Service port. */
struct bl_endpoint_key {
	__u32 prefix_len; /* all of the rest */
	union bl_addr addr;
	__be16 port;
	__u16 pad;
	__u32 service;
};
_Static_assert(sizeof(struct bl_endpoint_key) == 28, "bl_endpoint_key");

enum bl_endpoint_bits {
	BL_ENDPOINT_BITS = 8 * (sizeof(struct bl_endpoint_key) - sizeof(__u32)),
};

/*
 * A packet flow, as a packet of it looks where it is translated: forward packets
 * at ingress, replies at the ingress or egress that they pass first.
 */
struct bl_flow_key {
	union bl_addr src;
	union bl_addr dst;
	__be16 src_port;
	__be16 dst_port;
	__u8 proto;
	/* Of a forward entry: its packets get another source where they leave the host's stack,
	 * with the backend for their destination already. See BL_DEVICE_MASQUERADE. */
	__u8 masquerade;
	__u8 pad[2];
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_flow_key) == 40, "bl_flow_key");

/* The state of a flow, from which its idle timeout follows. */
enum bl_flow_state {
	BL_FLOW_NEW, /* no reply seen yet */
	BL_FLOW_SYN_RECEIVED, /* replied to; TCP: SYN and ACK of the backend seen */
	BL_FLOW_ESTABLISHED, /* the client has gone on after that; TCP: its ACK seen */
	BL_FLOW_CLIENT_CLOSING, /* TCP: FIN of the client seen */
	BL_FLOW_BACKEND_CLOSING, /* TCP: FIN of the backend seen */
	BL_FLOW_CLOSED, /* TCP: FIN of both sides, or RST */
	BL_FLOW_ABORTED, /* TCP: RST, or FIN of the client, before it was established */
	BL_FLOW_CLASHED, /* TCP: the backend has answered within another connection */
};

/*
 * TCP: sequence numbers of both directions, host byte order. 0 is not known. A packet whose
 * numbers are not near changes nothing: an off-path attacker, who cannot see the packets of a
 * connection, must not be able to change its state.
 */
struct bl_flow_tcp {
	__u32 client_seq; /* sequence number of the client's last packet */
	union {
		/* What it acknowledged; before that, what acknowledges the backend's SYN. */
		__u32 backend_seq;
		/* Before the backend has answered: 1 when another one has refused the connection. */
		__u32 refused;
	};
};

union bl_flow_progress {
	struct bl_flow_tcp tcp;
	/* UDP, another node has chosen the backend: the second in which it last did. */
	__u32 tunnel_second;
};

/* The source that the backend sees, beside the address. */
union bl_flow_source {
	__be16 port;
	__u16 node; /* with the tunnel: index in bl_node of the backend's node */
};

/* Of the client's packets, client -> Service address: they go to the backend. */
struct bl_flow_forward {
	union bl_addr backend;
	__u32 backend_id; /* ~0: not known */
	__u32 used; /* s of CLOCK_MONOTONIC_COARSE, last packet of either direction */
	union bl_flow_progress progress;
	__be16 backend_port;
	union bl_flow_source source;
	__u16 generation; /* BL_GENERATION_USER of the backend's */
	/* Output device, index in bl_device; 0 is the host's stack. Or BL_DEVICE_ROUTED,
	 * BL_DEVICE_HAIRPIN, BL_DEVICE_MASQUERADE. */
	__u8 device;
	__u8 bits; /* enum bl_flow_bits */
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_flow_forward) == 40, "bl_flow_forward");

/* Of the backend's packets, backend -> source: they go to the client. */
struct bl_flow_reply {
	union bl_addr service; /* address and port: the destination of the client's packets */
	union bl_addr client;
	__be16 service_port;
	__be16 client_port;
	__u16 touched; /* low bits of the second in which the forward entry was looked up */
	__u8 device; /* the client is behind it; values as of the forward entry */
	__u8 bits; /* enum bl_flow_bits */
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_flow_reply) == 40, "bl_flow_reply");

/*
 * How the packets of a flow are translated. A flow has two entries, and each can be rebuilt
 * from the other. The source, which the backend sees, is the client itself or, with SNAT, an
 * address of this node. flow_table.h alone writes entries.
 */
struct bl_flow_entry {
	union {
		struct bl_flow_forward forward;
		struct bl_flow_reply reply;
	};
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_flow_entry) == 40, "bl_flow_entry");

enum bl_flow_bits {
	/* enum bl_flow_state. Reply: whether there has been one, BL_FLOW_NEW or another. */
	BL_FLOW_STATE = 0x07,
	BL_FLOW_IS_REPLY = 1 << 3,
	BL_FLOW_SNAT = 1 << 4, /* the source is this node's */
	/* With a device: the client's packets leave in a tunnel, and there is no reply
	 * entry. Without: another node has chosen the backend and sent them here. */
	BL_FLOW_TUNNEL = 1 << 5,
	BL_FLOW_OVERFLOW = 1 << 6, /* both entries are in bl_overflow */
	BL_FLOW_POD = 1 << 7, /* the client is a pod: its device translates replies */
};

/*
 * Flows that are not established yet are half-open: the client's address may be forged, as
 * in a SYN flood. They have a share of bl_flow, so that they cannot evict the others. Flows
 * that begin when the share is used up are kept in bl_overflow until they are established.
 */
struct bl_half_open_entry {
	/* Half-open flows in bl_flow. Not exact: the agent corrects it now and then. */
	__s64 count;
	__u64 removed; /* entries that the agent has removed from bl_flow, ever */
	__u8 pad[48]; /* new flows write the fields above, all packets read those below */
	/* bl_flow_now() when bl_overflow was last added to; 0: it is empty. */
	__u32 overflow;
	__u8 pad2[60];
};
_Static_assert(sizeof(struct bl_half_open_entry) == 128, "bl_half_open_entry");

/* Networks of sources are /24 and /48. */
enum bl_source_share_size {
	BL_SOURCE_SHARE_BITS = 12,
};

/*
 * Established flows in bl_flow by the network of their client, of the kinds that a forged source
 * address can establish: all but TCP whose replies pass here. Flows beyond the share of a network
 * stay half-open.
 */
struct bl_source_share_entry {
	__u64 seed; /* random, by the agent, of the hash of a network: collisions cannot be chosen */
	__u32 most; /* flows of a place */
	__u32 pad;
	/* Not exact: programs add, the agent corrects it now and then. */
	__u32 count[1 << BL_SOURCE_SHARE_BITS];
};

/*
 * Source ports that SNAT avoids, by the agent: the ephemeral port range
 * (net.ipv4.ip_local_port_range) and ip_local_reserved_ports of the node. Host byte order.
 */
struct bl_source_port_entry {
	/* The ephemeral port range, for connections of the node's processes; both included. */
	__u16 local_min;
	__u16 local_max;
	__u32 pad;
	__u64 reserved[1024]; /* a bit for each port */
};
_Static_assert(sizeof(struct bl_source_port_entry) == 8200, "bl_source_port_entry");

/* A backend for which a flow with SNAT found no free source port: SNAT port exhaustion. */
struct bl_exhausted_key {
	union bl_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct bl_exhausted_key) == 20, "bl_exhausted_key");

struct bl_exhausted_entry {
	__u64 count; /* of new flows that were dropped */
	__u32 second; /* as bl_flow_now(), of the last one */
	__u32 backend_id;
};

/*
 * Whether this network namespace has entries of connection tracking (conntrack), and rules of routing
 * (ip rule) that look at who sends, by the agent.
 */
struct bl_tracking_entry {
	__u32 none_until; /* bl_flow_now() up to which it is taken to have no entries */
	__u32 no_rules_until; /* likewise of rules */
};

/* Size of bl_peers. */
enum bl_peers_size {
	BL_PEERS_SHIFT = 14,
	BL_PEERS_SIZE = 1 << BL_PEERS_SHIFT,
};

/*
 * Which hosts answer which in a flow, at the hash of both addresses: the second of
 * CLOCK_MONOTONIC_COARSE in which that was last seen, 0 for never. Two pairs of hosts
 * may share a place.
 */
struct bl_peers_entry {
	__u32 second[BL_PEERS_SIZE];
};

/* A tag of IEEE 802.1Q as it lies in a frame, but without priority; zero is none. */
struct bl_tag {
	__be16 protocol; /* ETH_P_8021Q or ETH_P_8021AD */
	__be16 id;
};

/* How many tags a frame may have that XDP serves. */
enum bl_tag_limit {
	BL_TAGS = 2,
};

/*
 * bl_vlan: frames that XDP gets at one device and that belong to another. The value is
 * the index of that in bl_device.
 */
struct bl_vlan_key {
	__u32 ifindex; /* of the device whose driver runs the program */
	struct bl_tag tag[BL_TAGS]; /* as in struct bl_device_entry */
};
_Static_assert(sizeof(struct bl_vlan_key) == 12, "bl_vlan_key");

enum bl_mac_limit {
	BL_MAC_PLACES = 1024,
};

/*
 * bl_mac: the MAC address of a device that XDP serves, at the place that the low bits of
 * its index name; frames for it have that one. An ifindex of 0 is an empty place.
 */
struct bl_mac_entry {
	__u32 ifindex;
	__u8 mac[6];
	__u8 pad[2];
};
_Static_assert(sizeof(struct bl_mac_entry) == 12, "bl_mac_entry");

/* A device that faces clients or other nodes: packets are translated there. */
struct bl_device_entry {
	union bl_addr addr6; /* source of SNAT; zero is none */
	__be32 addr4; /* likewise */
	__u32 ifindex; /* 0 is not in use */
	__u32 flags; /* enum bl_device_flag */
	__u32 mtu; /* bytes from the IP header on */
	/* Where XDP sends: the device itself or, of a VLAN, the one below; 0 is nowhere. */
	__u32 root;
	struct bl_tag tag[BL_TAGS]; /* that frames have there, the outer one first */
	/* Of the agent and of people. The name outlives the device: one of the same
	 * name gets the index, and so the flows, of the former. */
	char name[16];
	char reason[80]; /* why it was chosen */
	char no_xdp[84]; /* why XDP does not serve it */
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_device_entry) == 224, "bl_device_entry");

enum bl_device_flag {
	BL_DEVICE_NO_ETHERNET = 1 << 0, /* packets start with the IP header */
	/* The agent made the clsact qdisc and removes it with its filters. */
	BL_DEVICE_OWN_QDISC = 1 << 1,
	/* Clients behind it are inside of the cluster. */
	BL_DEVICE_INTERNAL = 1 << 2,
	/* XDP programs can send by it: whole frames, and those in several buffers. */
	BL_DEVICE_XDP_SEND = 1 << 3,
	BL_DEVICE_XDP_SEND_BUFFERS = 1 << 4,
	/* Routes to pods of this node lead to it as do those to pods of others. */
	BL_DEVICE_ALL_PODS = 1 << 5,
};

/*
 * bl_backend_dev: a cache of the device by which the route to a backend leads. A fib lookup
 * costs as much as all other lookups of a new flow together. An entry is one word, read and
 * written as a whole: low bits of the backend's id beyond the index, of its generation and of
 * the jiffy of the lookup, and the index in bl_device. It is good for the rest of the jiffy;
 * the agent clears all of them when routes change.
 */
enum bl_backend_dev_bits {
	BL_BACKEND_DEV_INDEX_BITS = 12, /* of the backend's id */
	BL_BACKEND_DEV_DEVICE_BITS = 8,
	BL_BACKEND_DEV_JIFFIES_BITS = 16,
	BL_BACKEND_DEV_GENERATION_BITS = 20,
	BL_BACKEND_DEV_ID_BITS = 20,
	BL_BACKEND_DEV_ENTRIES = 1 << BL_BACKEND_DEV_INDEX_BITS,
};

enum bl_device_limit {
	BL_DEVICE_MAX = 256, /* index 0 is never used */
	/* The device that the route to the destination leads to: that of a pod of this
	 * node. Its entry has addresses alone: those of this node that such a pod sees. */
	BL_DEVICE_ROUTED = 255,
	/* Hairpin: packets that the host sends to a Service with a backend on this node, and the
	 * replies, are sent back where they would leave. Its entry has the address alone that
	 * stands for the host. */
	BL_DEVICE_HAIRPIN = 254,
	/* The host's stack, and netfilter there, which sees the client's address; where the
	 * client's packets leave it, a second flow gives them another source. */
	BL_DEVICE_MASQUERADE = 253,
};

enum bl_node_addr_flag {
	BL_NODE_ADDR_SERVED = 1 << 0,
	/* Loopback: means this node only to its own network namespace. */
	BL_NODE_ADDR_HOST_ONLY = 1 << 1,
};

/*
 * The nodes of the cluster, this one among them; ids count from 1. The entry of id 0, which is not in
 * use, has the id of this node in place of an answer.
 */
struct bl_node_entry {
	union bl_addr addr; /* where the tunnel to it ends; zero: not in use */
	__u32 flags; /* enum bl_node_flag; the agent stores it and answer together */
	__u32 answer; /* enum bl_node_answer, for display */
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_node_entry) == 24, "bl_node_entry");

struct bl_node_name_entry {
	char name[256];
};

enum bl_node_flag {
	BL_NODE_SELF = 1 << 0,
	BL_NODE_TUNNEL = 1 << 1, /* it accepts tunnel traffic, by its latest answers */
};

/* The answer of a node to the question whether it accepts tunnel traffic. */
enum bl_node_answer {
	BL_NODE_NOT_ASKED, /* no endpoint that packets are to be tunneled to is on it */
	BL_NODE_ASKED, /* for the first time, just now */
	BL_NODE_ACCEPTS,
	BL_NODE_REFUSES,
	BL_NODE_UNREACHABLE, /* no answer to several questions */
};

enum bl_node_limit {
	BL_NODE_MAX = 8192,
};

/*
 * The tunnel: Geneve over UDP, the packet inside begins with its IP header and is the
 * client's as it came. Numbers are in host byte order. A packet whose Geneve header has
 * the flag for control is of an agent for another.
 */
enum bl_tunnel {
	BL_TUNNEL_CLASS = 0xfffb, /* of the option; from the range for experiments */
	/* Critical: a receiver that does not know it must drop the packet. */
	BL_TUNNEL_BACKEND = 0x81,
	/* The flags O and C in the header's second byte: for control, critical options. */
	BL_TUNNEL_CONTROL = 1 << 7,
	BL_TUNNEL_CRITICAL = 1 << 6,
};

/* The only option: the backend that the packet is for, and the mark of the cluster's secret. */
struct bl_tunnel_option {
	__be16 class;
	__u8 type;
	__u8 length; /* of the rest, in units of 4 bytes */
	union bl_addr backend;
	__be16 port;
	__be16 pad;
	__u8 secret[8]; /* of the cluster, see struct bl_secret_entry */
};
_Static_assert(sizeof(struct bl_tunnel_option) == 32, "bl_tunnel_option");

/*
 * The marks by which tunnel traffic shows that it is of a node of the cluster, by the agent: words
 * as they lie in the option, 0 where there is no secret. To rotate the secret, all nodes accept
 * both marks before the first one sends the new one.
 */
struct bl_secret_entry {
	__u64 sent;
	__u64 accepted[2];
};
_Static_assert(sizeof(struct bl_secret_entry) == 24, "bl_secret_entry");

/* Size of bl_filter. */
enum bl_filter_size {
	BL_FILTER_SHIFT = 22,
	BL_FILTER_WORDS = 1 << (BL_FILTER_SHIFT - 6),
	BL_FILTER_RINGS = 255, /* a protocol number that is reserved */
};

/*
 * A bit for each frontend, at the hash of its key: a clear bit means that there is
 * no such frontend, at a tenth of the cost of looking for it. The key of the
 * any-address, port 0 and BL_FILTER_RINGS stands for all Services of
 * BL_ALGORITHM_MAGLEV.
 */
struct bl_filter_entry {
	__u64 word[BL_FILTER_WORDS];
};

/*
 * The aggregate prefix of all Service CIDRs; outside of it bl_service_cidr is not looked
 * up. An address that has bits outside of its mask matches nothing.
 */
struct bl_aggregate_entry {
	union bl_addr addr6;
	union bl_addr mask6;
	__be32 addr4;
	__be32 mask4;
};
_Static_assert(sizeof(struct bl_aggregate_entry) == 40, "bl_aggregate_entry");

enum bl_agent_flag {
	/* The kernel cannot destroy UDP sockets (SOCK_DESTROY) whose endpoint is gone. */
	BL_AGENT_KEEPS_SOCKETS = 1 << 0,
	/* Kubernetes events about Services have not been sent yet. */
	BL_AGENT_EVENTS_WAIT = 1 << 1,
};

/* The agent that fills the tables. The programs do not read it. */
struct bl_agent_entry {
	__u64 started; /* ns since the epoch */
	__u64 synced; /* ns since the epoch of the last sync; 0 is never */
	__u64 syncs; /* since the start */
	__u64 pending; /* Services whose last sync failed */
	__u32 pid;
	__u16 tunnel_port; /* UDP, host byte order; 0 is no tunnel */
	__u16 flags; /* enum bl_agent_flag */
	char version[64];
	char node[256];
	char source[128];
	char sized_by[104]; /* the rule that the sizes of the tables follow from */
	__u64 evicted_established; /* flows, since the start, as far as is known */
	__u64 evicted_half_open;
	__u64 evicted; /* ns since the epoch when one was established; 0 is never */
	char cgroup[256];
};

/* The hook that runs; a constant of each program. */
enum bl_hook {
	BL_HOOK_INGRESS, /* of a device that faces clients or other nodes */
	BL_HOOK_EGRESS,
	BL_HOOK_POD_INGRESS, /* of the host's side of a pod's device: from the pod */
	BL_HOOK_POD_EGRESS, /* to the pod */
	/* From a pod whose packets are not served: for its replies to this node alone. */
	BL_HOOK_BACKEND_INGRESS,
};

/* The verdict of a packet. */
enum bl_verdict {
	BL_VERDICT_PASSES, /* untouched */
	BL_VERDICT_TRANSLATED, /* by struct bl_path */
	BL_VERDICT_DROPPED,
	BL_VERDICT_REFUSED, /* the client is told */
	BL_VERDICT_UNKNOWN, /* it begins a new flow */
};

/*
 * What would happen to a new connection: a question of the command, and the answer of the steps
 * that the programs take; see explain.h.
 */
struct bl_explain_query {
	/* Of a socket: what it is bound to, or the any-address. */
	union bl_addr src;
	union bl_addr dst;
	__u64 netns; /* cookie of a socket's network namespace */
	__be16 src_port;
	__be16 dst_port;
	__u8 proto;
	__u8 ipv4;
	__u8 hook; /* enum bl_hook, of a packet */
	__u8 pad[9];
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_explain_query) == 56, "bl_explain_query");

enum bl_explain_step {
	/* Sockets of this network namespace are left alone. */
	BL_EXPLAIN_NOT_SERVED = 1 << 0,
	/* There is a flow with these addresses and ports: its backend is the answer, unless it is over. */
	BL_EXPLAIN_KNOWN_FLOW = 1 << 1,
	BL_EXPLAIN_INTERNAL = 1 << 2, /* the client is under the internal traffic policy */
	BL_EXPLAIN_SET = 1 << 3, /* a set was asked for a backend */
	BL_EXPLAIN_AFFINITY = 1 << 4, /* something is remembered of the client */
	BL_EXPLAIN_RECALLED = 1 << 5, /* and it is what the client gets */
	BL_EXPLAIN_FLOW = 1 << 6, /* the fields of the flow are filled in */
	BL_EXPLAIN_BACK = 1 << 7, /* the packet is sent back to the pod that it came from */
	BL_EXPLAIN_FLOW_OVER = 1 << 8, /* the known flow is over: the packet begins another one */
};

struct bl_explain_entry {
	struct bl_explain_query query;
	struct bl_frontend_entry frontend;
	struct bl_affinity_entry affinity;
	struct bl_backend_ref backend; /* the one chosen */
	__u64 set; /* word of the set */
	__u32 steps; /* enum bl_explain_step */
	__u32 reason; /* why it is not served; BL_REASON_COUNT: there is nothing against it */
	__u32 member; /* BL_BACKEND_CLUSTER or BL_BACKEND_LOCAL: which set */
	__u32 verdict; /* enum bl_verdict */
	/* What the backend's side of the connection looks like, of a packet. */
	union bl_addr to_src;
	union bl_addr to_dst;
	__be16 to_src_port;
	__be16 to_dst_port;
	__u16 node; /* index in bl_node, to which the tunnel takes the packet; 0 is no tunnel */
	__u8 device; /* as in struct bl_flow_forward */
	__u8 flow_bits; /* enum bl_flow_bits */
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_explain_entry) == 152, "bl_explain_entry");

/* What the programs tell to those who listen: beeline monitor. */
enum bl_event_kind {
	BL_EVENT_CONNECTION = 1, /* a backend has been chosen for a new connection */
	BL_EVENT_REFUSED, /* it is not served, and the client is told so */
	BL_EVENT_DROPPED, /* it is not served */
	BL_EVENT_ESTABLISHED, /* a flow: both sides have answered each other */
	BL_EVENT_ENDED, /* a flow is closed, or a socket */
	BL_EVENT_LEFT, /* an endpoint has left its Service, and has open flows */
	BL_EVENT_EVICTED, /* established flows were, from the full table */
	BL_EVENT_EJECTED, /* an endpoint is, for connections to it have failed */
	BL_EVENT_ADMITTED, /* it gets connections again */
	BL_EVENT_LAST = BL_EVENT_ADMITTED,
};

/* Where it was seen. */
enum bl_event_hook {
	BL_EVENT_AT_CONNECT,
	BL_EVENT_AT_SENDMSG,
	BL_EVENT_AT_CLOSE, /* of a socket */
	BL_EVENT_AT_TC,
	BL_EVENT_AT_XDP,
	BL_EVENT_AT_TIMEOUT, /* the agent has removed an idle flow */
	BL_EVENT_AT_WALK, /* of the agent over the flow tables */
	BL_EVENT_AT_LOOK, /* of the agent at the connections that fail */
};

/*
 * An event. What is not known is zero. Addresses and ports are those of the client's packets, and
 * those that the backend sees.
 */
struct bl_event {
	__u64 time; /* ns of CLOCK_MONOTONIC */
	__u64 cookie; /* of the socket; 0: a flow */
	__u64 netns; /* cookie of the socket's network namespace */
	union bl_addr client;
	union bl_addr dst; /* what the client has asked for */
	union bl_addr source; /* towards the backend, by SNAT */
	union bl_addr backend;
	__u32 service; /* ~0: none */
	__u32 backend_id;
	__u32 ifindex; /* of the device that the packet is at */
	__u32 pid; /* of the process that has made the system call */
	/* TCP: the client's next sequence number, and the backend's. */
	__u32 client_seq;
	__u32 backend_seq;
	__be16 client_port;
	__be16 dst_port;
	__be16 source_port;
	__be16 backend_port;
	__u16 node; /* index in bl_node of the backend's */
	__u8 proto;
	__u8 kind; /* enum bl_event_kind */
	__u8 hook; /* enum bl_event_hook */
	__u8 reason; /* enum bl_reason */
	__u8 flow; /* enum bl_flow_bits */
	__u8 device; /* of a flow, as in its forward entry */
	char comm[16]; /* name of the process */
	/* Of BL_EVENT_LEFT and BL_EVENT_EVICTED: how many; of BL_EVENT_EJECTED: those that failed. */
	__u32 flows;
	__u32 seconds; /* of BL_EVENT_EJECTED: for how long */
	struct bl_traffic_entry traffic; /* of a TCP socket that has ended: bytes of its payload */
};
_Static_assert(sizeof(struct bl_event) == 184, "bl_event");

/* The input of bl_tell: what the agent has found. */
struct bl_found {
	/* A flow that it has removed, or one of those of an endpoint; else zero. */
	struct bl_flow_key key;
	struct bl_flow_forward forward;
	__u32 kind; /* enum bl_event_kind */
	__u32 flows; /* as of the event, and so is seconds */
	__u32 seconds;
	__u32 pad;
};
_Static_assert(sizeof(struct bl_found) == 96, "bl_found");

enum bl_monitor_limits {
	BL_MONITORS = 4,
	/* The unit of leases: ns of CLOCK_MONOTONIC, shifted. */
	BL_MONITOR_SHIFT = 27,
	/* So many units, shifted, are a slice of time in which events are counted against a limit:
	 * 2^30 ns, about a second. */
	BL_MONITOR_LIMIT_SHIFT = 3,
};

/* Ids of Service ports: from @first to the one before @end. An @end of 0: none. */
struct bl_monitor_services {
	__u32 first;
	__u32 end;
};

/* One who listens. Its process renews it; of one that does not, nothing is left to be told. */
struct bl_monitor_listener {
	/* In the upper half the last unit of time (BL_MONITOR_SHIFT) in which the place is its own,
	 * in the lower one a number that only this listener has. */
	__u64 until;
	__u32 kinds; /* of enum bl_event_kind, by bits */
	__u32 sample; /* one of so many connections is told; 0 and 1: all */
	__u32 limit; /* events in a slice of time */
	__u32 taken; /* of them, in that which began last */
	__u32 slice; /* its number */
	/* What is below holds while this is the lower half of until: a listener of a former version
	 * leaves there what another one has written. */
	__u32 filtered;
	__u64 reasons; /* of enum bl_reason, by bits; 0: also what has none */
	/* Ranges of addresses, as of bl_monitor_range; 0: all. */
	__u32 client;
	__u32 backend;
	struct bl_monitor_services services[2]; /* both none: all */
};
_Static_assert(sizeof(struct bl_monitor_listener) == 64, "bl_monitor_listener");

/* What a CPU has counted for a listener. */
struct bl_monitor_cpu_entry {
	__u64 left_out; /* events beyond the limit, and those for which there was no room */
	__u32 slice;
	__u32 taken; /* events in the slice */
	__u32 seen; /* not in use: of programs of former versions */
	__u32 pad;
};

/* bl_monitor: the events are told to listeners as long as there are any. */
struct bl_monitor_entry {
	__u64 listening; /* by bits; 0: nothing is told */
	/* In the lower half those by bits that want all of their kinds and may have no more events in
	 * the slice of time whose number is the upper half: what is left out then costs little. */
	__u64 full;
	__u64 pad[6]; /* else a line of memory that is written to more often */
	struct bl_monitor_listener listener[BL_MONITORS];
};
_Static_assert(sizeof(struct bl_monitor_entry) == 320, "bl_monitor_entry");

enum bl_answer_limits {
	/* Slices of time, in which ICMP errors are counted: ns of CLOCK_MONOTONIC, shifted. */
	BL_ANSWER_SHIFT = 27,
};

/*
 * Index of bl_counter. Append only: the numbers are what dashboards and the
 * command line know.
 */
enum bl_reason {
	/* Refused: no usable endpoint anywhere. */
	BL_REASON_NO_ENDPOINT,
	/* Dropped: the policy is Local and no endpoint is on this node. */
	BL_REASON_NO_LOCAL_ENDPOINT,
	/* Dropped: the client is outside loadBalancerSourceRanges. */
	BL_REASON_SOURCE_RANGE,
	/* Refused: the port is none of the ClusterIP's Service. */
	BL_REASON_UNDECLARED_PORT,
	/* Dropped: no Service has this address of the Service CIDR. */
	BL_REASON_UNALLOCATED_ADDRESS,
	/* Refused: an id led to no entry, which is a bug of Beeline. */
	BL_REASON_BROKEN_TABLE,
	/* Served, but getpeername() will show the backend: no memory. */
	BL_REASON_SOCK_NOT_STORED,
	/* Served, but the reply will show the backend: no memory. */
	BL_REASON_UDP_PEER_NOT_STORED,
	/* Served without affinity: no memory. */
	BL_REASON_AFFINITY_NOT_STORED,
	/* Dropped: all source ports towards the backend are in use. */
	BL_REASON_NO_SOURCE_PORT,
	/* Dropped: no memory for the flow. */
	BL_REASON_FLOW_NOT_STORED,
	/* Served: the packet was sent on by XDP. */
	BL_REASON_XDP_SENT,
	/* Passed untouched: a fragment that came before its datagram's first one, and no
	 * room to keep it until then. */
	BL_REASON_FRAGMENT_NOT_KEPT,
	/* Served: the packet was translated at tc. */
	BL_REASON_PACKET_TRANSLATED,
	/* Passed untouched at tc ingress: the packet is of no flow and for no Service. */
	BL_REASON_PACKET_PASSED,
	/* Served: the packet was sent to its backend's node in the tunnel. */
	BL_REASON_TUNNEL_SENT,
	/* Served: a packet was taken out of the tunnel. */
	BL_REASON_TUNNEL_RECEIVED,
	/* Dropped: a packet of the tunnel that comes from no node of the cluster. */
	BL_REASON_TUNNEL_UNKNOWN_SENDER,
	/* Dropped: a packet of the tunnel that is cut short, fragmented, nested or has another option. */
	BL_REASON_TUNNEL_MALFORMED,
	/* Dropped: a packet of the tunnel whose backend is no endpoint of the Service on this
	 * node. */
	BL_REASON_TUNNEL_NO_BACKEND,
	/* Served: the flow began when half-open ones had used up their share of the table. */
	BL_REASON_FLOW_OVERFLOW,
	/* Dropped: the device to the backend has no address of the family for SNAT. */
	BL_REASON_NO_SOURCE_ADDRESS,
	/* No event: entries that the programs have added to bl_flow, and removed from it. */
	BL_REASON_FLOW_ENTRY_ADDED,
	BL_REASON_FLOW_ENTRY_REMOVED,
	/* Dropped: a packet of the tunnel to an address and port that no Service has. */
	BL_REASON_TUNNEL_NO_SERVICE,
	/* Dropped: an ICMP message of the tunnel that is no error about a flow to a backend on
	 * this node. */
	BL_REASON_TUNNEL_NO_FLOW,
	/* Dropped: a packet of the tunnel without a secret that this node accepts. */
	BL_REASON_TUNNEL_WRONG_SECRET,
	/* Dropped: a packet to the tunnel's port of another node that a pod or a process of this
	 * node has sent. */
	BL_REASON_TUNNEL_SPOOFED,
	/* Served: a packet of a flow that stays half-open, for the network of its client has its
	 * share of the established ones. */
	BL_REASON_SOURCE_SHARE,
	/* Dropped: a datagram from outside whose source is a Service's address and port. */
	BL_REASON_SOURCE_FRONTEND,
	/* Dropped: a backend's reset that answers a SYN, which the client is to repeat: it then goes
	 * to another backend. */
	BL_REASON_RESET_HELD,
	/* Dropped: a packet that is refused, or has no hop left, without the ICMP error that says so:
	 * the node has sent as many as it may. */
	BL_REASON_ICMP_LIMITED,
	BL_REASON_COUNT,
};
_Static_assert(BL_REASON_COUNT < 64, "reasons of bl_monitor_listener");
