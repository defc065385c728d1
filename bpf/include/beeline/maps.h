/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps. Sizes given as 1 are set by the agent when it makes the map.
 */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <beeline/types.h>

#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/*
 * The entry of an array of one, without a lookup. When the programs are loaded, each reference to
 * such a map becomes the address of its entry (DirectValues in pkg/bpf), which is never NULL: no
 * helper can be called with such a map.
 */
#define bl_value(map) ((typeof((map).value))bl_reference(&(map)))

static __always_inline void *bl_reference(void *map)
{
	asm("" : "+r"(map)); /* the compiler knows the map's definition, which is no such value */
	return map;
}

/*
 * Types that no map names directly, among them the values of chunks, are left out
 * of BTF unless a variable has them.
 */
#define BL_EXPORT(kind, name) const kind name *const bl_export_##name __attribute__((unused)) = 0
BL_EXPORT(struct, bl_service_entry);
BL_EXPORT(struct, bl_service_name_entry);
BL_EXPORT(struct, bl_service_stat_entry);
BL_EXPORT(struct, bl_slot_line);
BL_EXPORT(struct, bl_backend_entry);
BL_EXPORT(struct, bl_active_entry);
BL_EXPORT(struct, bl_outlier_entry);
BL_EXPORT(struct, bl_sandbox_packet);
BL_EXPORT(enum, bl_outlier_trial);
BL_EXPORT(enum, bl_schema);
BL_EXPORT(enum, bl_chunk);
BL_EXPORT(enum, bl_frontend_kind);
BL_EXPORT(enum, bl_frontend_flag);
BL_EXPORT(enum, bl_set_bits);
BL_EXPORT(enum, bl_set_kind);
BL_EXPORT(enum, bl_algorithm);
BL_EXPORT(enum, bl_active_kind);
BL_EXPORT(enum, bl_ewma_limits);
BL_EXPORT(enum, bl_traffic_kind);
BL_EXPORT(struct, bl_traffic_key);
BL_EXPORT(struct, bl_traffic_entry);
BL_EXPORT(enum, bl_backend_state);
BL_EXPORT(enum, bl_generation_bits);
BL_EXPORT(enum, bl_sock_state);
BL_EXPORT(enum, bl_udp_sock_size);
BL_EXPORT(enum, bl_udp_direction);
BL_EXPORT(struct, bl_udp_query);
BL_EXPORT(enum, bl_udp_answer);
BL_EXPORT(enum, bl_node_addr_flag);
BL_EXPORT(enum, bl_endpoint_bits);
BL_EXPORT(enum, bl_filter_size);
BL_EXPORT(enum, bl_reason);
BL_EXPORT(enum, bl_event_kind);
BL_EXPORT(enum, bl_event_hook);
BL_EXPORT(struct, bl_event);
BL_EXPORT(struct, bl_found);
BL_EXPORT(enum, bl_answer_limits);
BL_EXPORT(enum, bl_monitor_limits);
BL_EXPORT(enum, bl_flow_state);
BL_EXPORT(enum, bl_flow_bits);
BL_EXPORT(struct, bl_flow_forward);
BL_EXPORT(struct, bl_flow_reply);
BL_EXPORT(struct, bl_tag);
BL_EXPORT(enum, bl_device_flag);
BL_EXPORT(enum, bl_device_limit);
BL_EXPORT(enum, bl_mac_limit);
BL_EXPORT(enum, bl_forwarding);
BL_EXPORT(enum, bl_node_flag);
BL_EXPORT(enum, bl_agent_flag);
BL_EXPORT(enum, bl_node_answer);
BL_EXPORT(enum, bl_node_limit);
BL_EXPORT(enum, bl_tunnel);
BL_EXPORT(struct, bl_tunnel_option);
BL_EXPORT(enum, bl_hook);
BL_EXPORT(enum, bl_verdict);
BL_EXPORT(enum, bl_explain_step);
BL_EXPORT(struct, bl_explain_query);
BL_EXPORT(struct, bl_explain_entry);

/* Never preallocated: the memory grows with what is served. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_frontend_key);
	__type(value, struct bl_frontend_entry);
} bl_frontend SEC(".maps");

/*
 * Growable tables: an array of chunks, each an array that the agent has mapped
 * into its memory. Growing adds a chunk and moves nothing.
 */
#define BL_CHUNK(value_type, entries, type_, flags) \
	struct {                                    \
		__uint(type, type_);                \
		__uint(max_entries, entries);       \
		__uint(map_flags, flags);           \
		__type(key, __u32);                 \
		__type(value, value_type);          \
	}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_service_entry, BL_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_service SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_service_name_entry, BL_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_service_name SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_service_stat_entry, BL_CHUNK_SIZE,
				 BPF_MAP_TYPE_PERCPU_ARRAY, 0));
} bl_service_stat SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_slot_line, BL_SLOT_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_slot SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_backend_entry, BL_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_backend SEC(".maps");

/* By the ids of bl_backend. Without a chunk until a Service asks for such an algorithm. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_active_entry, BL_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_active SEC(".maps");

/* By the ids of bl_backend. Without a chunk until a Service asks for outlier detection. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_outlier_entry, BL_CHUNK_SIZE, BPF_MAP_TYPE_ARRAY,
				 BPF_F_MMAPABLE));
} bl_outlier SEC(".maps");

/* By Service and by backend. Never preallocated: the memory grows with what has traffic. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_traffic_key);
	__type(value, struct bl_traffic_entry);
} bl_traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_affinity_key);
	__type(value, struct bl_affinity_entry);
} bl_affinity SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_udp_peer_key);
	__type(value, struct bl_udp_peer_entry);
} bl_udp_peer SEC(".maps");

/*
 * UDP sockets, each at the place that its cookie names. Cookies count up, so the places of
 * sockets of the same time differ.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_UDP_SOCK_SIZE);
	__type(key, __u32);
	__type(value, struct bl_sock_entry);
} bl_udp_sock SEC(".maps");

/* Sockets of TCP, and those of UDP whose place is another one's. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bl_sock_entry);
} bl_sock SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_srcrange_key);
	__type(value, __u32);
} bl_srcrange SEC(".maps");

/*
 * Asked only about new flows that come by the tunnel. A trie, unlike a hash, takes memory for
 * nothing but what it holds; all keys have the full length.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_endpoint_key);
	__type(value, __u32);
} bl_endpoint SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_cidr_key);
	__type(value, __u32);
} bl_service_cidr SEC(".maps");

/*
 * Addresses in Service CIDRs of Services that another proxy serves, asked only about what would be
 * dropped. A trie for its memory, as bl_endpoint.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_cidr_key);
	__type(value, __u32);
} bl_foreign SEC(".maps");

/* Pods by address: a client in one of these may be beside its backend on another node. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_cidr_key);
	__type(value, __u32);
} bl_local_cidr SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_flow_key);
	__type(value, struct bl_flow_entry);
} bl_flow SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_flow_key);
	__type(value, struct bl_flow_entry);
} bl_overflow SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_half_open_entry);
} bl_half_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_source_share_entry);
} bl_source_share SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_tracking_entry);
} bl_tracking SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_source_port_entry);
} bl_source_port SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct bl_exhausted_key);
	__type(value, struct bl_exhausted_entry);
} bl_exhausted SEC(".maps");

/* Used by the agent and the command alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_unapplied_key);
	__type(value, struct bl_unapplied_entry);
} bl_unapplied SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_peers_entry);
} bl_peers SEC(".maps");

/* Session affinity of packets, by client address: of clients with an established flow. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_client_key);
	__type(value, struct bl_affinity_entry);
} bl_client SEC(".maps");

/* Likewise, of those that have yet to establish one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_client_key);
	__type(value, struct bl_affinity_entry);
} bl_new_client SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_DEVICE_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_device_entry);
} bl_device SEC(".maps");

/* Interface index to index in bl_device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BL_DEVICE_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} bl_device_id SEC(".maps");

/* The device that the route to a backend leads to, by its id; see enum bl_backend_dev_bits. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_BACKEND_DEV_ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} bl_backend_dev SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16 * BL_DEVICE_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bl_vlan_key);
	__type(value, __u32);
} bl_vlan SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_MAC_PLACES);
	__type(key, __u32);
	__type(value, struct bl_mac_entry);
} bl_mac SEC(".maps");

/* Addresses that NodePorts answer on; the value is enum bl_node_addr_flag. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, union bl_addr);
	__type(value, __u32);
} bl_node_addr SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_NODE_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_node_entry);
} bl_node SEC(".maps");

/* Every address of every node of the cluster to its index in bl_node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4 * BL_NODE_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, union bl_addr);
	__type(value, __u32);
} bl_node_id SEC(".maps");

/* Name of each node by its index in bl_node, for people and for a new agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BL_NODE_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct bl_node_name_entry);
} bl_node_name SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_secret_entry);
} bl_secret SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_filter_entry);
} bl_filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_aggregate_entry);
} bl_aggregate SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_agent_entry);
} bl_agent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BL_REASON_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} bl_counter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bl_monitor_entry);
} bl_monitor SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BL_MONITORS);
	__type(key, __u32);
	__type(value, struct bl_monitor_cpu_entry);
} bl_monitor_cpu SEC(".maps");

/* The events that a listener has yet to read, in a ring of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, BL_MONITORS);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_RINGBUF);
			__uint(max_entries, 4096);
		});
} bl_monitor_ring SEC(".maps");

/* Cookies of network namespaces whose sockets are left alone; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct bl_nat_entry);
} bl_nat SEC(".maps");

/* Cookies of such that bl_nat does not have, for the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* bytes; at least a page */
} bl_nat_seen SEC(".maps");

/* Indexes of the devices of pods whose sockets the kernel does not see; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} bl_sandbox SEC(".maps");

/* Packets of such that bl_sandbox does not have, for the agent: struct bl_sandbox_packet. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* bytes; at least a page */
} bl_sandbox_seen SEC(".maps");

/* Cookie of the network namespace that is the node's. */
volatile const __u64 bl_host_netns;
/* Serve sockets of the node's own network namespace only. */
volatile const bool bl_host_sockets_only;
/* Leave the sockets of network namespaces alone that translate their own connections. */
volatile const bool bl_leave_nat;
/* Differs between nodes. */
volatile const __u32 bl_seed;
/* The UDP port of the tunnel; 0 is no tunnel. */
volatile const __u16 bl_tunnel_port;
/* Lower the MSS of TCP connections that come by the tunnel to what fits into it. */
volatile const bool bl_tunnel_clamp;
/* How long an idle unconnected UDP socket keeps its backend, ns. */
volatile const __u64 bl_udp_peer_idle = 60ULL * 1000 * 1000 * 1000;
/* When a server of BL_ALGORITHM_LOCALITY that got no connection is forgotten, and one of several
 * taken back, ns; 0: no Service has such an algorithm. */
volatile const __u64 bl_locality_idle;

static __always_inline void bl_count(enum bl_reason reason)
{
	__u32 index = reason;
	__u64 *counter = bpf_map_lookup_elem(&bl_counter, &index);

	if (counter)
		(*counter)++;
}
