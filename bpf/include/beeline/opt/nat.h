/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Network namespaces that translate their own connections, as a mesh's sidecar has it done: its
 * rules of nat OUTPUT must see the address that the process asked for.
 */
#pragma once

#include <beeline/sock_client.h>

enum bl_nat_hooks {
	BL_NAT_PRIORITY = -100, /* NF_IP_PRI_NAT_DST, NF_IP6_PRI_NAT_DST */
	BL_NAT_MAX_HOOKS = 16, /* of one kind that are looked at */
};

/*
 * Whether the hook at @index of @hooks, a struct nf_hook_entries, is nat's, and has a chain. Its
 * private data begins with the list of chains: the kernel registers nat at all its hooks as soon as
 * one has a chain. A number, as in the next one, so that the verifier reads the function once.
 */
__noinline bool bl_nat_is(__u64 hooks, __u32 index, __u32 count)
{
	void *entries = (void *)hooks + bpf_core_field_offset(struct nf_hook_entries, hooks);
	__u32 size = bpf_core_type_size(struct nf_hook_entry);
	void *priv = NULL, *chains = NULL;
	struct nf_hook_ops *ops = NULL;

	if (!bl_may_read_kernel)
		return false;
	/* What the hooks were registered with follows them. */
	if (bpf_probe_read_kernel(&ops, sizeof(ops),
				  entries + count * size + index * sizeof(ops)) ||
	    BPF_CORE_READ(ops, priority) != BL_NAT_PRIORITY)
		return false;
	priv = BPF_CORE_READ((struct nf_hook_entry *)(entries + index * size), priv);
	return !bpf_probe_read_kernel(&chains, sizeof(chains), priv) && chains;
}

/* Whether a network namespace, a struct net, has a chain of nat OUTPUT for the family. */
__noinline bool bl_nat_output(__u64 netns, bool ipv4)
{
	struct net *net = (struct net *)netns;
	struct nf_hook_entries *hooks;
	__u32 count;

	if (!bl_may_read_kernel || !net || !bpf_core_field_exists(net->nf))
		return false;
	hooks = ipv4 ? BPF_CORE_READ(net, nf.hooks_ipv4[BL_NF_LOCAL_OUT])
		     : BPF_CORE_READ(net, nf.hooks_ipv6[BL_NF_LOCAL_OUT]);
	if (!hooks)
		return false;
	count = BPF_CORE_READ(hooks, num_hook_entries);
	for (__u32 i = 0; i < BL_NAT_MAX_HOOKS && i < count; i++) {
		if (bl_nat_is((__u64)hooks, i, count))
			return true;
	}
	return false;
}

/*
 * Whether the socket is to be left alone. It is only when its packets are served at the devices
 * of its network namespace, which the agent is told of once it is seen.
 */
static __always_inline bool bl_nat_leaves(struct BL_SOCK_CONTEXT *ctx, bool ipv4)
{
	const struct bl_nat_entry *entry;
	__u64 cookie;

	if (!bl_leave_nat)
		return false;
	cookie = bl_context_netns(ctx);
	if (cookie == bl_host_netns || !bl_nat_output((__u64)bl_source_net(ctx->sk), ipv4))
		return false;
	entry = bpf_map_lookup_elem(&bl_nat, &cookie);
	if (entry)
		return entry->ifindex[0];
	bpf_ringbuf_output(&bl_nat_seen, &cookie, sizeof(cookie), 0);
	return false;
}
