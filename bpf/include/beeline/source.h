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

struct net {
	struct list_head dev_base_head;
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
};

#pragma clang attribute pop

enum bl_source_limits {
	BL_SOURCE_MAX_DEVICES = 8192,
	BL_SOURCE_MAX_ADDRESSES = 32,
	BL_SOURCE_LOOPBACK = 1 << 3, /* IFF_LOOPBACK */
};

/* The state of one walk over the devices of a network namespace. */
struct bl_source_walk {
	struct list_head *head;
	struct list_head *at;
	__u32 service;
	bool ipv4;
	bool allowed;
	union bl_addr first BL_ALIGNED; /* of bl_source_visit_first */
};

static __always_inline bool bl_source_ipv4(__u32 service, struct net_device *dev)
{
	struct in_ifaddr *at = BPF_CORE_READ(dev, ip_ptr, ifa_list);
	union bl_addr addr;

	for (int i = 0; at && i < BL_SOURCE_MAX_ADDRESSES; i++) {
		bl_addr_set_ipv4(&addr, BPF_CORE_READ(at, ifa_local));
		if (bl_source_in_range(service, &addr))
			return true;
		at = BPF_CORE_READ(at, ifa_next);
	}
	return false;
}

static __always_inline bool bl_source_ipv6(__u32 service, struct net_device *dev)
{
	struct inet6_dev *in6 = BPF_CORE_READ(dev, ip6_ptr);
	struct list_head *head, *at;
	struct inet6_ifaddr *ifa;
	union bl_addr addr;

	if (!in6)
		return false;
	head = (void *)in6 + bpf_core_field_offset(struct inet6_dev, addr_list);
	at = BPF_CORE_READ(head, next);
	for (int i = 0; at && at != head && i < BL_SOURCE_MAX_ADDRESSES; i++) {
		ifa = (void *)at - bpf_core_field_offset(struct inet6_ifaddr, if_list);
		if (BPF_CORE_READ_INTO(&addr, ifa, addr))
			return false;
		if (bl_source_in_range(service, &addr))
			return true;
		at = BPF_CORE_READ(at, next);
	}
	return false;
}

/* Callback of bpf_loop: look at one device. Returns 1 to stop. */
static long bl_source_visit(__u32 index, void *arg)
{
	struct bl_source_walk *walk = arg;
	struct list_head *at = walk->at;
	struct net_device *dev;

	(void)index;
	if (!at || at == walk->head)
		return 1;
	dev = (void *)at - bpf_core_field_offset(struct net_device, dev_list);
	if (walk->ipv4 ? bl_source_ipv4(walk->service, dev) : bl_source_ipv6(walk->service, dev)) {
		walk->allowed = true;
		return 1;
	}
	walk->at = BPF_CORE_READ(at, next);
	return 0;
}

/*
 * The first address of a device, when it can be that of packets to other hosts; the
 * kernel lists addresses of wider scope first.
 */
static __always_inline bool bl_source_first_of(struct bl_source_walk *walk, struct net_device *dev)
{
	struct list_head *head, *at;
	struct inet6_ifaddr *ifa6;
	struct inet6_dev *in6;
	struct in_ifaddr *ifa;

	if (BPF_CORE_READ(dev, flags) & BL_SOURCE_LOOPBACK)
		return false;
	if (walk->ipv4) {
		ifa = BPF_CORE_READ(dev, ip_ptr, ifa_list);
		if (!ifa)
			return false;
		bl_addr_set_ipv4(&walk->first, BPF_CORE_READ(ifa, ifa_local));
		return true;
	}
	in6 = BPF_CORE_READ(dev, ip6_ptr);
	if (!in6)
		return false;
	head = (void *)in6 + bpf_core_field_offset(struct inet6_dev, addr_list);
	at = BPF_CORE_READ(head, next);
	if (!at || at == head)
		return false;
	ifa6 = (void *)at - bpf_core_field_offset(struct inet6_ifaddr, if_list);
	if (BPF_CORE_READ_INTO(&walk->first, ifa6, addr))
		return false;
	/* fe80::/10 is of the link only. */
	return (walk->first.word[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000);
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
	dev = (void *)at - bpf_core_field_offset(struct net_device, dev_list);
	if (bl_source_first_of(walk, dev)) {
		walk->allowed = true;
		return 1;
	}
	walk->at = BPF_CORE_READ(at, next);
	return 0;
}

/* Begin a walk in the network namespace of @sk. */
static __always_inline bool bl_source_begin(struct bpf_sock *sk, struct bl_source_walk *walk)
{
	struct list_head *head;
	struct sock *kernel_sk;
	struct net *net;

	/* The verifier lets nobody do arithmetic on @sk; a copy of its value is free. */
	if (bpf_probe_read_kernel(&kernel_sk, sizeof(kernel_sk), &sk))
		return false;
	net = BPF_CORE_READ(kernel_sk, __sk_common.skc_net.net);
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
 * Whether a socket may reach the load-balancer address of @service. @source is
 * the address it is bound to, or the any-address.
 */
static __noinline bool bl_source_allowed(struct bpf_sock *sk, const union bl_addr *source,
					 __u32 service, bool ipv4)
{
	struct bl_source_walk walk = {.service = service, .ipv4 = ipv4};

	if (bl_source_bound(source, ipv4))
		return bl_source_in_range(service, source);
	if (!bl_source_begin(sk, &walk))
		return false;
	bpf_loop(BL_SOURCE_MAX_DEVICES, bl_source_visit, &walk, 0);
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
