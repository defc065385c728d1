/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Source addresses of sockets, for loadBalancerSourceRanges and source hashes.
 *
 * At connect() a socket that is not bound has no source address yet, and no
 * program of this kind may ask the routing table. Such a socket counts as coming
 * from the addresses of its network namespace: a pod has one of each family. For
 * source ranges any of them will do, a hash takes the first. Needs the kernel's own
 * structures; their layout comes from BTF.
 */
#pragma once

#include <bpf/bpf_core_read.h>
#include <beeline/service.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct nf_hook_ops {
	int priority;
};

struct nf_hook_entry {
	void *hook;
	void *priv;
};

struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

enum bl_nf_hooks {
	BL_NF_LOCAL_OUT = 3, /* NF_INET_LOCAL_OUT */
	BL_NF_HOOKS = 5, /* NF_INET_NUMHOOKS */
};

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[BL_NF_HOOKS];
	struct nf_hook_entries *hooks_ipv6[BL_NF_HOOKS];
};

struct net {
	struct list_head dev_base_head;
	struct netns_nf nf;
};

struct in_ifaddr {
	struct in_ifaddr *ifa_next;
	__be32 ifa_local;
};

struct in_device {
	struct in_ifaddr *ifa_list;
};

struct inet6_ifaddr {
	union bl_addr addr;
	struct list_head if_list;
};

struct inet6_dev {
	struct list_head addr_list;
};

struct net_device {
	unsigned int flags;
	struct list_head dev_list;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	__u8 sk_kern_sock : 1;
	int sk_err;
};

#pragma clang attribute pop

/* Whether programs may read the kernel's memory: lockdown in mode confidentiality forbids it. */
volatile const bool bl_may_read_kernel;

enum bl_source_limits {
	BL_SOURCE_MAX_DEVICES = 8192,
	BL_SOURCE_MAX_STEPS = 32768, /* devices, and addresses of a family */
	BL_SOURCE_LOOPBACK = 1 << 3, /* IFF_LOOPBACK */
};

/* The state of one walk over the devices of a network namespace. */
struct bl_source_walk {
	struct list_head *head;
	struct list_head *at;
	/* Of the device, the next to be looked at; NULL when it has none, or was not begun. */
	void *address;
	__u32 service;
	__u32 tail; /* of the frontend that is asked for */
	bool ipv4;
	bool allowed;
	union bl_addr first BL_ALIGNED; /* of bl_source_visit_first */
};

static __always_inline struct net_device *bl_source_device(struct list_head *at)
{
	return (void *)at - bpf_core_field_offset(struct net_device, dev_list);
}

/* The address of IPv6 that is @at, NULL when that is the end of the device's list. */
static __always_inline void *bl_source_entry6(struct inet6_dev *in6, struct list_head *at)
{
	void *head = (void *)in6 + bpf_core_field_offset(struct inet6_dev, addr_list);

	return at && at != head ? (void *)at - bpf_core_field_offset(struct inet6_ifaddr, if_list)
				: NULL;
}

/* The first address of a device. NULL when it has none. */
static __always_inline void *bl_source_begin_device(struct net_device *dev, bool ipv4)
{
	struct inet6_dev *in6;

	if (ipv4)
		return BPF_CORE_READ(dev, ip_ptr, ifa_list);
	in6 = BPF_CORE_READ(dev, ip6_ptr);
	return in6 ? bl_source_entry6(in6, BPF_CORE_READ(in6, addr_list.next)) : NULL;
}

/* Read an address. False when it is gone. */
static __always_inline bool bl_source_read(const void *address, bool ipv4, union bl_addr *addr)
{
	const struct inet6_ifaddr *ifa6 = address;
	const struct in_ifaddr *ifa = address;

	if (!ipv4)
		return !BPF_CORE_READ_INTO(addr, ifa6, addr);
	bl_addr_set_ipv4(addr, BPF_CORE_READ(ifa, ifa_local));
	return true;
}

/* The address after another one of the device. NULL when there is none. */
static __always_inline void *bl_source_next(const void *address, bool ipv4, struct net_device *dev)
{
	const struct inet6_ifaddr *ifa6 = address;
	const struct in_ifaddr *ifa = address;

	return ipv4 ? BPF_CORE_READ(ifa, ifa_next)
		    : bl_source_entry6(BPF_CORE_READ(dev, ip6_ptr),
				       BPF_CORE_READ(ifa6, if_list.next));
}

/* Whether a client of this node with the address @addr is let in, see bl_client_allowed. */
static __always_inline bool bl_source_lets_in(__u32 service, __u32 tail, const union bl_addr *addr)
{
	return bl_source_in_range(service, addr) || bl_source_is_balancer(service, tail, addr);
}

/* Whether the address that the walk is at is let in. The walk goes on to the next one. */
static __always_inline bool bl_source_look(struct bl_source_walk *walk, struct net_device *dev)
{
	union bl_addr addr = {};

	if (!bl_source_read(walk->address, walk->ipv4, &addr)) {
		walk->address = NULL;
		return false;
	}
	walk->address = bl_source_next(walk->address, walk->ipv4, dev);
	return bl_source_lets_in(walk->service, walk->tail, &addr);
}

/* Callback of bpf_loop: a device, or one of its addresses. Returns 1 to stop. */
static long bl_source_visit(__u32 index, void *arg)
{
	struct bl_source_walk *walk = arg;
	struct list_head *at = walk->at;
	struct net_device *dev;

	(void)index;
	if (!at || at == walk->head)
		return 1;
	dev = bl_source_device(at);
	if (!walk->address) {
		walk->address = bl_source_begin_device(dev, walk->ipv4);
	} else if (bl_source_look(walk, dev)) {
		walk->allowed = true;
		return 1;
	}
	if (!walk->address)
		walk->at = BPF_CORE_READ(at, next);
	return 0;
}

/*
 * The first address of a device, when it can be that of packets to other hosts; the
 * kernel lists addresses of wider scope first.
 */
static __always_inline bool bl_source_first_of(struct bl_source_walk *walk, struct net_device *dev)
{
	void *address;

	if (BPF_CORE_READ(dev, flags) & BL_SOURCE_LOOPBACK)
		return false;
	address = bl_source_begin_device(dev, walk->ipv4);
	if (!address || !bl_source_read(address, walk->ipv4, &walk->first))
		return false;
	/* fe80::/10 is of the link only. */
	return walk->ipv4 || (walk->first.word[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000);
}

/* Callback of bpf_loop: look at one device for its first address. Returns 1 to stop. */
static long bl_source_visit_first(__u32 index, void *arg)
{
	struct bl_source_walk *walk = arg;
	struct list_head *at = walk->at;
	struct net_device *dev;

	(void)index;
	if (!at || at == walk->head)
		return 1;
	dev = bl_source_device(at);
	if (bl_source_first_of(walk, dev)) {
		walk->allowed = true;
		return 1;
	}
	walk->at = BPF_CORE_READ(at, next);
	return 0;
}

/*
 * The kernel's socket, to be read. The verifier lets nobody do arithmetic on @sk; a copy of its value is
 * free. NULL where the kernel's memory may not be read.
 */
static __always_inline struct sock *bl_source_sock(struct bpf_sock *sk)
{
	struct sock *kernel_sk;

	if (!bl_may_read_kernel || bpf_probe_read_kernel(&kernel_sk, sizeof(kernel_sk), &sk))
		return NULL;
	return kernel_sk;
}

/* The network namespace of @sk; NULL when it cannot be read. */
static __always_inline struct net *bl_source_net(struct bpf_sock *sk)
{
	struct sock *kernel_sk = bl_source_sock(sk);

	return kernel_sk ? BPF_CORE_READ(kernel_sk, __sk_common.skc_net.net) : NULL;
}

/* Begin a walk in the network namespace of @sk. */
static __always_inline bool bl_source_begin(struct bpf_sock *sk, struct bl_source_walk *walk)
{
	struct net *net = bl_source_net(sk);
	struct list_head *head;

	if (!net)
		return false;
	head = (void *)net + bpf_core_field_offset(struct net, dev_base_head);
	walk->head = head;
	walk->at = BPF_CORE_READ(head, next);
	return true;
}

/* Whether @source is an address, not the any-address. */
static __always_inline bool bl_source_bound(const union bl_addr *source, bool ipv4)
{
	return source->word[3] || (!ipv4 && (source->word[0] | source->word[1] | source->word[2]));
}

/*
 * Whether a socket may reach the load-balancer address of @service, at its port and protocol in
 * @tail. @source is the address it is bound to, or the any-address.
 */
static __noinline bool bl_source_allowed(struct bpf_sock *sk, const union bl_addr *source,
					 __u32 service, __u32 tail, bool ipv4)
{
	struct bl_source_walk walk = {.service = service, .tail = tail, .ipv4 = ipv4};

	if (bl_source_bound(source, ipv4))
		return bl_source_lets_in(service, tail, source);
	if (!bl_source_begin(sk, &walk))
		return false;
	/*
	 * Linux 6.1 checks the callback for the first step alone. Were it known that this one
	 * has no address, the kernel would take out what looks at addresses.
	 */
	walk.address = bl_source_begin_device(bl_source_device(walk.at), ipv4);
	bpf_loop(BL_SOURCE_MAX_STEPS, bl_source_visit, &walk, 0);
	return walk.allowed;
}

/*
 * The address that a socket's packets will come from: @source, to which it is bound,
 * else the first of its network namespace that is neither of a loopback device nor of
 * the link only. A packet of a pod has the same. Zero when there is none.
 */
static __always_inline union bl_addr bl_source_first(struct bpf_sock *sk,
						     const union bl_addr *source, bool ipv4)
{
	struct bl_source_walk walk = {.ipv4 = ipv4};

	if (bl_source_bound(source, ipv4))
		return *source;
	if (bl_source_begin(sk, &walk))
		bpf_loop(BL_SOURCE_MAX_DEVICES, bl_source_visit_first, &walk, 0);
	if (!walk.allowed)
		__builtin_memset(&walk.first, 0, sizeof(walk.first));
	return walk.first;
}
