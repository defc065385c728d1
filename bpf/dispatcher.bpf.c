// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Several XDP programs on one device, one after another. Each replaces one of the functions
 * below. Names and the layout of the settings are those of libxdp's protocol (xdp-tools,
 * lib/libxdp/protocol.org): its tools read and replace this program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* How many programs there is room for. */
#define DISPATCHER_SLOTS 10

/* The action of a function that no program replaces: the next one runs. */
#define DISPATCHER_NEXT 31

struct config {
	__u8 magic; /* 236 */
	/* 2, or 3: that has one more byte, 1 for programs that are bound to the device */
	__u8 version;
	/* programs */
	__u8 count;
	/* 1 when packets may lie in several buffers */
	__u8 frags;
	/* by slot, a bit for each action after which the next program runs */
	__u32 next[DISPATCHER_SLOTS];
	/* by slot, in rising order */
	__u32 priority[DISPATCHER_SLOTS];
	/* by slot, BPF_F_XDP_HAS_FRAGS */
	__u32 flags[DISPATCHER_SLOTS];
};
_Static_assert(sizeof(struct config) == 124, "config");

const volatile struct config config = {
	.next = {[0 ... DISPATCHER_SLOTS - 1] = 1U << DISPATCHER_NEXT},
};

/*
 * What a program may replace. One that moves the packet's beginning may replace only a
 * function that does so, too, since Linux 6.13.
 */
#define SLOT(number)                                                   \
	__attribute__((noinline)) int prog##number(struct xdp_md *xdp) \
	{                                                              \
		int action = DISPATCHER_NEXT;                          \
                                                                       \
		if (!xdp)                                              \
			return XDP_ABORTED;                            \
		bpf_xdp_adjust_head(xdp, 0);                           \
		barrier_var(action);                                   \
		return action;                                         \
	}

/* Run a program, and return its action unless the next one is to run. */
#define RUN(number)                                \
	if (config.count <= number)                \
		return XDP_PASS;                   \
	action = prog##number(xdp);                \
	if (!(config.next[number] & 1U << action)) \
		return action;

SLOT(0)
SLOT(1)
SLOT(2)
SLOT(3)
SLOT(4)
SLOT(5)
SLOT(6)
SLOT(7)
SLOT(8)
SLOT(9)

SEC("xdp")
int xdp_dispatcher(struct xdp_md *xdp)
{
	int action;

	RUN(0)
	RUN(1)
	RUN(2)
	RUN(3)
	RUN(4)
	RUN(5)
	RUN(6)
	RUN(7)
	RUN(8)
	RUN(9)
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
