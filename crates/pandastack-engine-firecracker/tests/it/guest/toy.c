// The guest of the engine's tests: a program without a kernel that answers the conformance suite.
//
// It keeps one number in memory and one on each disk, and answers questions over vsock, one line
// each: "<nonce> remember 7", "<nonce> recall", "<nonce> write 7", "<nonce> read", "<nonce> size",
// each answered with "<nonce> <number>". The last three take the index of a disk, "read 1"; without
// one they mean the root disk.
//
// It needs nothing but 64-bit code, port output and memory-mapped registers, so it runs on a KVM
// that emulates instructions and could not run Linux. It never takes an interrupt: all queues are
// polled.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define QUEUE 8
#define SECTOR 512
#define PACKET 4096
#define PORT 1024
#define DISKS 5

// Firecracker puts its tables here and maps the first gigabyte; devices are in the fourth.
#define PAGE_DIRECTORY_POINTERS 0xa000UL
#define DEVICES 0xc0000000UL
#define DEVICE_BYTES 0x1000UL
#define DEVICES_MAX 24

#define MAGIC 0x74726976
enum { TYPE_BLOCK = 2, TYPE_VSOCK = 19 };
enum { OP_REQUEST = 1, OP_RESPONSE, OP_RST, OP_SHUTDOWN, OP_RW, OP_CREDIT_UPDATE, OP_CREDIT_REQUEST };

static u64 device_pages[512] __attribute__((aligned(4096)));

struct descriptor { u64 address; u32 length; u16 flags, next; };
struct used_element { u32 id, length; };
struct queue {
    struct descriptor table[QUEUE] __attribute__((aligned(16)));
    struct { volatile u16 flags, index, ring[QUEUE], event; } available __attribute__((aligned(4)));
    struct { volatile u16 flags, index; volatile struct used_element ring[QUEUE]; volatile u16 event; }
        used __attribute__((aligned(4)));
    u16 seen;
    u64 device;
    u32 number;
} __attribute__((aligned(4096)));

struct header {
    u64 from_cid, to_cid;
    u32 from_port, to_port, length;
    u16 type, operation;
    u32 flags, buffer, forwarded;
} __attribute__((packed));

static struct queue disk_queues[DISKS];
static u32 disks;
static struct { u32 type, reserved; u64 sector; } disk_request;
static u8 disk_data[SECTOR] __attribute__((aligned(SECTOR)));
static volatile u8 disk_status;

static struct queue receiving, sending, events;
static u8 received[QUEUE][PACKET] __attribute__((aligned(4096)));
static u8 packet[PACKET] __attribute__((aligned(4096)));
static u8 event_buffers[QUEUE][8];
static u64 our_cid, peer_cid;
static u32 peer_port, forwarded;

static char line[256];
static u32 line_length;
static u64 remembered;

static u32 read_register(u64 device, u32 offset) { return *(volatile u32 *)(device + offset); }
static void write_register(u64 device, u32 offset, u32 value) { *(volatile u32 *)(device + offset) = value; }
static void barrier(void) { __asm__ volatile("" ::: "memory"); }

static void print(const char *text) {
    for (; *text; text++)
        __asm__ volatile("outb %0, %1" ::"a"(*text), "Nd"((u16)0x3f8));
}

static void map_devices(void) {
    for (u64 page = 0; page < 512; page++)
        device_pages[page] = DEVICES + (page << 21) + 0x83;
    ((volatile u64 *)PAGE_DIRECTORY_POINTERS)[3] = (u64)device_pages + 3;
}

// Accepts the modern interface and nothing else.
static void begin(u64 device) {
    write_register(device, 0x70, 0);
    write_register(device, 0x70, 1);
    write_register(device, 0x70, 3);
    write_register(device, 0x24, 0);
    write_register(device, 0x20, 0);
    write_register(device, 0x24, 1);
    write_register(device, 0x20, 1);
    write_register(device, 0x70, 11);
}

static void add_queue(u64 device, struct queue *queue, u32 number) {
    queue->device = device;
    queue->number = number;
    write_register(device, 0x30, number);
    write_register(device, 0x38, QUEUE);
    u64 parts[3] = {(u64)queue->table, (u64)&queue->available, (u64)&queue->used};
    for (u32 part = 0; part < 3; part++) {
        write_register(device, 0x80 + 0x10 * part, (u32)parts[part]);
        write_register(device, 0x84 + 0x10 * part, (u32)(parts[part] >> 32));
    }
    write_register(device, 0x44, 1);
}

static void finish(u64 device) { write_register(device, 0x70, 15); }

static void offer(struct queue *queue, u16 head) {
    queue->available.ring[queue->available.index % QUEUE] = head;
    barrier();
    queue->available.index++;
    barrier();
}

static void notify(struct queue *queue) { write_register(queue->device, 0x50, queue->number); }

// Takes the next used chain; -1 if there is none.
static int take(struct queue *queue, u32 *length) {
    barrier();
    if (queue->used.index == queue->seen)
        return -1;
    barrier();
    volatile struct used_element *element = &queue->used.ring[queue->seen++ % QUEUE];
    *length = element->length;
    return (int)element->id;
}

static u8 access_disk(u32 disk, u32 type, u64 sector) {
    struct queue *queue = &disk_queues[disk];
    disk_request.type = type;
    disk_request.sector = sector;
    disk_status = 0xff;
    u16 direction = type == 0 ? 2 : 0;
    queue->table[0] = (struct descriptor){(u64)&disk_request, 16, 1, 1};
    queue->table[1] = (struct descriptor){(u64)disk_data, SECTOR, (u16)(direction | 1), 2};
    queue->table[2] = (struct descriptor){(u64)&disk_status, 1, 2, 0};
    offer(queue, 0);
    notify(queue);
    u32 length;
    while (take(queue, &length) < 0)
        __asm__ volatile("pause");
    return disk_status;
}

static u64 disk_size(u32 disk) {
    u64 device = disk_queues[disk].device;
    return (read_register(device, 0x100) | (u64)read_register(device, 0x104) << 32) * SECTOR;
}

static void send(u16 operation, u64 cid, u32 port, u32 length) {
    struct header *header = (struct header *)packet;
    *header = (struct header){our_cid, cid, PORT, port, length, 1, operation, 0, 65536, forwarded};
    sending.table[0] = (struct descriptor){(u64)packet, (u32)sizeof *header + length, 0, 0};
    offer(&sending, 0);
    notify(&sending);
    u32 ignored;
    while (take(&sending, &ignored) < 0)
        __asm__ volatile("pause");
}

static const char *number(const char *text, u64 *value) {
    *value = 0;
    while (*text == ' ')
        text++;
    while (*text >= '0' && *text <= '9')
        *value = *value * 10 + (u64)(*text++ - '0');
    return text;
}

static int starts(const char **text, const char *word) {
    const char *at = *text;
    while (*at == ' ')
        at++;
    while (*word)
        if (*at++ != *word++)
            return 0;
    *text = at;
    return 1;
}

static u32 put_number(u8 *to, u64 value) {
    u8 digits[20];
    u32 count = 0, length = 0;
    do
        digits[count++] = (u8)('0' + value % 10);
    while (value /= 10);
    while (count)
        to[length++] = digits[--count];
    return length;
}

static void answer(const char *text) {
    u64 nonce, value, disk = 0;
    text = number(text, &nonce);
    if (starts(&text, "remember")) {
        number(text, &value);
        remembered = value;
    } else if (starts(&text, "recall")) {
        value = remembered;
    } else if (starts(&text, "write")) {
        number(number(text, &value), &disk);
        *(u64 *)disk_data = value;
        if (disk >= disks || access_disk((u32)disk, 1, 0))
            return;
    } else if (starts(&text, "read")) {
        number(text, &disk);
        if (disk >= disks || access_disk((u32)disk, 0, 0))
            return;
        value = *(u64 *)disk_data;
    } else if (starts(&text, "size")) {
        number(text, &disk);
        if (disk >= disks)
            return;
        value = disk_size((u32)disk);
    } else {
        return;
    }
    u8 *to = packet + sizeof(struct header);
    u32 length = put_number(to, nonce);
    to[length++] = ' ';
    length += put_number(to + length, value);
    to[length++] = '\n';
    send(OP_RW, peer_cid, peer_port, length);
}

static void take_bytes(const u8 *bytes, u32 count) {
    forwarded += count;
    for (u32 at = 0; at < count; at++) {
        if (bytes[at] != '\n') {
            if (line_length < sizeof line - 1)
                line[line_length++] = (char)bytes[at];
            continue;
        }
        line[line_length] = 0;
        line_length = 0;
        answer(line);
    }
}

static void take_packet(const u8 *bytes) {
    const struct header *header = (const struct header *)bytes;
    int ours = header->from_port == peer_port && header->from_cid == peer_cid;
    switch (header->operation) {
    case OP_REQUEST:
        peer_cid = header->from_cid;
        peer_port = header->from_port;
        forwarded = 0;
        line_length = 0;
        send(header->to_port == PORT ? OP_RESPONSE : OP_RST, peer_cid, peer_port, 0);
        break;
    case OP_RW:
        if (ours)
            take_bytes(bytes + sizeof *header, header->length);
        else
            send(OP_RST, header->from_cid, header->from_port, 0);
        break;
    case OP_SHUTDOWN:
        send(OP_RST, header->from_cid, header->from_port, 0);
        if (ours)
            peer_port = 0;
        break;
    case OP_CREDIT_REQUEST:
        send(OP_CREDIT_UPDATE, header->from_cid, header->from_port, 0);
        break;
    default:
        break;
    }
}

static void begin_disk(u64 device) {
    if (disks == DISKS)
        return;
    begin(device);
    add_queue(device, &disk_queues[disks++], 0);
    finish(device);
}

static void begin_vsock(u64 device) {
    begin(device);
    add_queue(device, &receiving, 0);
    add_queue(device, &sending, 1);
    add_queue(device, &events, 2);
    finish(device);
    our_cid = read_register(device, 0x100);
    for (u16 buffer = 0; buffer < QUEUE; buffer++) {
        receiving.table[buffer] = (struct descriptor){(u64)received[buffer], PACKET, 2, 0};
        offer(&receiving, buffer);
        events.table[buffer] = (struct descriptor){(u64)event_buffers[buffer], 8, 2, 0};
        offer(&events, buffer);
    }
    notify(&receiving);
    notify(&events);
}

// After a snapshot all connections are gone. Returning the buffers acknowledges that, and Firecracker
// delivers packets again from then on: so all events are taken first.
static void take_events(void) {
    u32 length;
    int head, taken = 0;
    while ((head = take(&events, &length)) >= 0) {
        peer_port = 0;
        offer(&events, (u16)head);
        taken = 1;
    }
    if (taken)
        notify(&events);
}

static void take_packets(void) {
    u32 length;
    int head = take(&receiving, &length);
    if (head < 0)
        return;
    take_packet(received[head]);
    offer(&receiving, (u16)head);
    notify(&receiving);
}

void run(void) {
    map_devices();
    u64 vsock = 0;
    for (u32 slot = 0; slot < DEVICES_MAX; slot++) {
        u64 device = DEVICES + slot * DEVICE_BYTES;
        if (read_register(device, 0) != MAGIC)
            continue;
        u32 type = read_register(device, 8);
        if (type == TYPE_BLOCK)
            begin_disk(device);
        if (type == TYPE_VSOCK)
            vsock = device;
    }
    if (vsock)
        begin_vsock(vsock);
    print("toy guest: ready\n");
    for (;;) {
        if (vsock) {
            take_events();
            take_packets();
        }
        __asm__ volatile("pause");
    }
}
