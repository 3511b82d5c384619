//! The targets.

mod protocols;
mod texts;

use pandastack_apps::fuzz as apps;
use pandastack_backup::fuzz as backup;
use pandastack_edge::fuzz as edge;
use pandastack_engine_firecracker::fuzz as firecracker;
use pandastack_engine_qemu::fuzz as qemu;
use pandastack_functions::fuzz as functions;
use pandastack_guest::fuzz as guest;
use pandastack_image::fuzz as image;
use pandastack_net::fuzz as net;
use pandastack_oidc::fuzz as oidc;
use pandastack_postgres::fuzz as postgres;
use pandastack_templates::fuzz as templates;

use crate::Target;

/// Tables and buffers of a fixed size.
const MEMORY_BYTES: usize = 256 * 1024;
/// Copies, and growing buffers.
const MEMORY_PER_BYTE: usize = 64;
/// A tree of JSON or TOML: a value of some tens of bytes for each byte, in buffers that double.
const TREE_PER_BYTE: usize = 512;
/// A message may be allocated from its header, before it arrives, up to the largest size.
const FRAME_BYTES: usize = pandastack_function_proto::FRAME_BYTES_MAX + MEMORY_BYTES;
/// Deflate makes up to 1,032 bytes of one, and growing buffers hold them twice.
const INFLATED_PER_BYTE: usize = 4 * 1032;
/// Memory of compressors and decompressors, some of which have windows of megabytes.
const CODEC_BYTES: usize = 16 * 1024 * 1024;

const fn target(name: &'static str, parse: fn(&[u8])) -> Target {
    Target {
        name,
        parse,
        input_bytes_max: 4096,
        memory_bytes: MEMORY_BYTES,
        memory_per_byte: MEMORY_PER_BYTE,
    }
}

const fn tree(name: &'static str, parse: fn(&[u8])) -> Target {
    Target { memory_per_byte: TREE_PER_BYTE, ..target(name, parse) }
}

const fn packed(name: &'static str, parse: fn(&[u8])) -> Target {
    Target { memory_bytes: CODEC_BYTES, memory_per_byte: INFLATED_PER_BYTE, ..target(name, parse) }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    tree("guest-frames", protocols::guest_frames),
    target("guest-decoder", protocols::guest_decoder),
    tree("function-frames", protocols::function_frames),
    Target { memory_bytes: FRAME_BYTES, ..tree("function-runtime", functions::runtime_frames) },
    tree("function-api", guest::runtime_http),
    target("shim-request", protocols::shim_request),
    target("shim-reply", qemu::shim_reply),
    tree("qmp", qemu::qmp),
    tree("firecracker", firecracker::api_answer),
    target("http1-request", edge::request),
    target("http1-answer", edge::answer),
    target("http1-chunks", edge::chunks),
    target("websocket", edge::websocket),
    target("web-hello", net::hello),
    target("dns-answer", net::dns_answer),
    target("postgres-startup", postgres::startup),
    target("postgres-stream", postgres::server_stream),
    target("postgres-session", postgres::session),
    tree("postgres-values", postgres::values),
    target("postgres-names", postgres::names),
    target("backup-message", backup::wal_message),
    Target { input_bytes_max: 3 * 8192, ..target("backup-wal", backup::wal) },
    target("backup-names", backup::archive_names),
    Target { input_bytes_max: 16 * 1024, ..target("tar", guest::tar_stream) },
    packed("bundle", functions::bundle),
    packed("deb", image::deb),
    target("dpkg-status", templates::dpkg_status),
    tree("network-policy", texts::network_policy),
    target("dotenv", apps::dotenv),
    tree("app-manifest", texts::app_manifest),
    tree("app-source", texts::app_source),
    target("dockerfile", texts::dockerfile),
    target("dockerignore", texts::dockerignore),
    Target { input_bytes_max: 600, ..target("image-reference", texts::image_reference) },
    Target { input_bytes_max: 300, ..target("schedule", texts::schedule) },
    target("sse", texts::sse),
    tree("id-token", oidc::id_token),
    target("host-join", protocols::host_join),
];
