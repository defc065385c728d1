package main

//go:generate go tool bpf2go -cc clang-19 -strip ../../tools/bpfstrip -target bpfel,bpfeb -tags linux -no-global-types -type bl_flow_key -type bl_bench_case -type bl_bench_rewrite packets bpf/packets.bpf.c -- -I../../bpf/include -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu -O2 -mcpu=v3 -Wall -Wextra -Werror -fno-strict-aliasing
//go:generate go tool bpf2go -cc clang-19 -strip ../../tools/bpfstrip -target bpfel,bpfeb -tags linux -no-global-types -type bl_bench_case -type bl_bench_arrivals xdp bpf/xdp.bpf.c -- -I../../bpf/include -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu -O2 -mcpu=v3 -Wall -Wextra -Werror -fno-strict-aliasing
