# lvsd: what a developer and CI run. Nothing here needs more than a Debian 12 machine with Rust; namespaces need root.
CARGO ?= cargo
# Where `make install` puts things; DESTDIR goes before them all, for packages.
PREFIX ?= /usr/local
DESTDIR ?=
BUILT := $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help setup demo test test-long lint build install uninstall man bench bench-vm oracle

help:
	@echo "make demo       client, director and three servers in namespaces on this machine (root; DATAPATH=KIND)"
	@echo "make build      release binaries"
	@echo "make install    binaries, manual pages and systemd unit to PREFIX (/usr/local), below DESTDIR; 'make uninstall'"
	@echo "make test       lint, all tests, fuzz targets one minute each (at most 25 minutes on 2 cores)"
	@echo "make test-long  the same in release, more cases, ten minutes of fuzzing each (at most 60 minutes)"
	@echo "make lint       rustfmt and clippy"
	@echo "make bench      measurements into bench/results/latest.json (QUICK=1: at most 6 minutes)"
	@echo "make bench-vm   instructions a packet beside a Linux 6.1's IPVS, in a VM (root; installs qemu), into the same file"
	@echo "make oracle     against a live Linux 6.1's tunnels, IPVS and BPF verifier, in a VM (root; installs qemu)"
	@echo "make man        manual pages from the option tables"
	@echo "make setup      install what the above need (apt)"

setup:
	@scripts/setup

build: setup
	$(CARGO) build --release --workspace --lib --bins

install:
	@for f in lvsd lvsctl liblvsd_preload.so; do test -e $(BUILT)/$$f || \
	{ echo "make install: $(BUILT)/$$f is not there: 'make build' makes it" >&2; exit 1; }; done
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(BUILT)/lvsd $(BUILT)/lvsctl
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/lvsd $(BUILT)/liblvsd_preload.so
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man8 man/lvsd.8 man/lvsctl.8
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/local|$(PREFIX)|' contrib/lvsd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/lvsd.service

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/lvsd $(DESTDIR)$(PREFIX)/sbin/lvsctl $(DESTDIR)$(PREFIX)/lib/lvsd/liblvsd_preload.so \
	$(DESTDIR)$(PREFIX)/share/man/man8/lvsd.8 $(DESTDIR)$(PREFIX)/share/man/man8/lvsctl.8 \
	$(DESTDIR)$(PREFIX)/lib/systemd/system/lvsd.service

demo: build
	@scripts/demo

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# All scenarios run on AF_PACKET rings, and a part again on each other data path: every scenario of a method on AF_XDP rings, every one of each
# method on tc and on xdp, in both families between these two, queues and interfaces that change, and what outlives the daemon, which only a tier
# does. `make test-long` has them all on all.
AFXDP_PAIRS = nat_v4 gre_v6
TC_PAIRS = nat_v6 dr_v4 ipip_v4 queues operator survival daemon
XDP_PAIRS = nat_v4 dr_v6 gre_v6 queues operator live survival
GENERIC_PAIRS = nat_v4 dr_v6 ipip_v6 gre_v4

# The test profile (optimised a little, with debug assertions and overflow checks) is meant: it builds in a third of the
# time of release, and an arithmetic slip panics instead of passing.
test:
	@scripts/setup --fuzz
	$(MAKE) --no-print-directory lint
	$(CARGO) build --profile test --workspace --lib --bins --locked
	$(CARGO) test --workspace --locked --no-fail-fast
	LVSD_DATAPATH=afxdp $(CARGO) test --test scenarios --locked --no-fail-fast -- $(AFXDP_PAIRS)
	LVSD_DATAPATH=tc $(CARGO) test --test scenarios --locked --no-fail-fast -- $(TC_PAIRS)
	LVSD_DATAPATH=xdp $(CARGO) test --test scenarios --locked --no-fail-fast -- $(XDP_PAIRS)
	scripts/fuzz 60

test-long:
	@scripts/setup --fuzz
	$(MAKE) --no-print-directory lint
	$(CARGO) build --release --workspace --lib --bins --locked
	PROPTEST_CASES=4096 LVSD_TIER_PACKETS=1000000 $(CARGO) test --release --workspace --locked --no-fail-fast
	LVSD_SOAK_SECS=300 PROPTEST_CASES=4096 $(CARGO) test --release --workspace --locked --no-fail-fast -- --ignored
	LVSD_SOAK_SECS=300 LVSD_DATAPATH=afxdp $(CARGO) test --release --test scenarios --locked --no-fail-fast -- --include-ignored
	LVSD_DATAPATH=tc $(CARGO) test --release --test scenarios --locked --no-fail-fast -- --include-ignored
	LVSD_DATAPATH=xdp $(CARGO) test --release --test scenarios --locked --no-fail-fast -- --include-ignored
	LVSD_DATAPATH=afxdp-generic $(CARGO) test --release --test scenarios --locked --no-fail-fast -- $(GENERIC_PAIRS)
	scripts/fuzz 600

bench: build
	@scripts/setup --bench
	@bench/run $(if $(QUICK),--quick)

man:
	$(CARGO) run --quiet --locked -p lvsctl --example man > man/lvsctl.8.new
	mv man/lvsctl.8.new man/lvsctl.8

bench-vm: build
	bench/vm/run $(BUILT)

oracle: build
	tests/oracle/run
