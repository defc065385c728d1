/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Netfilter's connection tracking, which may translate connections to the same backends
 * from the same address: kube-proxy's, and those that a CNI masquerades. The program that
 * includes this file says by bl_context_ct_lookup which lookup takes its context.
 */
#pragma once

#include <beeline/flow_table.h>

/* As the kernel has them (net/netfilter/nf_conntrack_bpf.c), as far as Linux 6.1 does. */
struct nf_conn {
};

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

_Static_assert(sizeof(struct bpf_ct_opts) == 12, "the size by which the kernel knows it");

/* Whether the kernel has the functions below. */
volatile const bool bl_conntrack;

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 __u32 tuple_size, struct bpf_ct_opts *opts,
					 __u32 opts_size) __ksym __weak;
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *xdp, struct bpf_sock_tuple *tuple,
					 __u32 tuple_size, struct bpf_ct_opts *opts,
					 __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/*
 * Whether netfilter tracks no connection here, as the agent has found a moment ago: one conntrack
 * lookup is a tenth of the cost of a new flow. Without an agent it is false after a moment.
 */
static __always_inline bool bl_tracking_none(void)
{
	return bl_flow_now() < bl_value(bl_tracking)->none_until;
}

/* What packets are to a connection that netfilter tracks. */
enum bl_tracked {
	BL_TRACKED_NONE, /* of none, as far as can be asked */
	BL_TRACKED_CLIENT,
	BL_TRACKED_ANSWER,
};

/* What packets with the addresses and ports of @tuple are. SCTP cannot be asked about. */
static __always_inline enum bl_tracked
bl_tracked(struct BL_CONTEXT *context, struct bpf_sock_tuple *tuple, __u32 size, __u8 proto)
{
	struct bpf_ct_opts opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = proto};
	struct nf_conn *connection;

	if (!bl_conntrack || bl_tracking_none())
		return BL_TRACKED_NONE;
	connection = bl_context_ct_lookup(context, tuple, size, &opts, sizeof(opts));
	if (!connection)
		return BL_TRACKED_NONE;
	bpf_ct_release(connection);
	return opts.dir ? BL_TRACKED_ANSWER : BL_TRACKED_CLIENT;
}
