package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wantedModules are loaded before the tests, after what they depend on: nothing
// loads modules on demand in the test kernels.
var wantedModules = []string{
	"veth", "dummy", "bridge", "vxlan", "8021q", "bonding", "tun", "ipip",
	"nf_tables", "nf_conntrack", "nf_conntrack_netlink", "sctp",
	"sch_ingress", "cls_bpf",
	"tcp_diag", "udp_diag",
}

// crc32c is loaded before them where a kernel has it as a module: libcrc32c, which others depend on, asks for
// it by a name that no dependency has.
const crc32c = "crc32c_generic"

// l2tp has tunnels whose UDP sockets are the kernel's own, which TestKernelSockets makes. It is loaded where
// a kernel has it.
const l2tp = "l2tp_netlink"

// ipvsModules are loaded likewise where a kernel has them: TestIPVS compares Beeline with IPVS, and the tests of
// tests/ipvs run kube-proxy by it.
var ipvsModules = []string{
	"ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_lc", "ip_vs_wlc", "ip_vs_sed", "ip_vs_nq", "ip_vs_lblc", "ip_vs_lblcr",
	"ip_vs_sh", "ip_vs_dh", "ip_vs_mh",
	"ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_bitmap_port",
	"nft_compat", "nft_chain_nat", "nft_ct", "nft_fib_inet",
	"xt_set", "xt_comment", "xt_mark", "xt_MASQUERADE", "xt_addrtype", "xt_conntrack", "xt_tcpudp", "ipt_REJECT", "ip6t_REJECT",
}

// kubeProxyPath is where kube-proxy is in the initramfs of a kernel with IPVS.
const kubeProxyPath = "/usr/bin/kube-proxy"

// module is a kernel module as the kernel loads it.
type module struct {
	name string
	data []byte
}

// moduleIndex knows the modules of one kernel.
type moduleIndex struct {
	files   map[string]string // name to path, perhaps compressed
	builtin map[string]bool
	loaded  map[string]bool
	order   []module
}

// modulesOf returns the wanted modules of a kernel in the order to load them.
func modulesOf(ctx context.Context, img *image) ([]module, error) {
	index, err := readModules(img.modules)
	if err != nil {
		return nil, err
	}
	wanted := slices.Clone(wantedModules)
	if index.has(crc32c) {
		wanted = slices.Insert(wanted, 0, crc32c)
	}
	if index.has(l2tp) {
		wanted = append(wanted, l2tp)
	}
	if index.has("ip_vs") {
		wanted = append(wanted, ipvsModules...)
	}
	for _, name := range wanted {
		if err := index.load(ctx, name); err != nil {
			return nil, fmt.Errorf("kernel %s: module %s: %w", img.release, name, err)
		}
	}
	return index.order, nil
}

func readModules(dir string) (*moduleIndex, error) {
	index := &moduleIndex{
		files:   map[string]string{},
		builtin: map[string]bool{},
		loaded:  map[string]bool{},
	}
	builtin, err := os.Open(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	defer builtin.Close()
	lines := bufio.NewScanner(builtin)
	for lines.Scan() {
		name, _ := moduleName(lines.Text())
		index.builtin[name] = true
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return index, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := moduleName(path); ok {
			index.files[name] = path
		}
		return err
	})
}

// moduleName returns the name by which the kernel knows the module in a file.
func moduleName(path string) (name string, ok bool) {
	name, _, ok = strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_"), ok
}

// has reports whether the kernel has all of some modules.
func (m *moduleIndex) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !m.builtin[name] && m.files[name] == "" })
}

// load adds a module to the order, after those it depends on.
func (m *moduleIndex) load(ctx context.Context, name string) error {
	if m.builtin[name] || m.loaded[name] {
		return nil
	}
	path := m.files[name]
	if path == "" {
		return errors.New("neither built in nor among the kernel's modules")
	}
	data, err := readModule(ctx, path)
	if err != nil {
		return err
	}
	depends, err := moduleDepends(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	m.loaded[name] = true
	for _, other := range depends {
		if err := m.load(ctx, other); err != nil {
			return fmt.Errorf("needs %s: %w", other, err)
		}
	}
	m.order = append(m.order, module{name: name, data: data})
	return nil
}

func readModule(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".ko") {
		return os.ReadFile(path)
	}
	if strings.HasSuffix(path, ".xz") {
		return command(ctx, "", "xz", "--decompress", "--stdout", path)
	}
	return nil, fmt.Errorf("%s: compressed in an unknown way", path)
}

// moduleDepends reads the names of the modules that must be loaded before.
func moduleDepends(data []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section: not a kernel module")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
