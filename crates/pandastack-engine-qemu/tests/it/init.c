/* Guest program of the tests, PID 1 of a guest without anything else: answers questions about one number in memory,
 * one on disk and one on a volume. A question is a line "<nonce> <verb> [number]", its answer "<nonce> <number>". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHANNEL "pandastack.guest.0"
/* One absolute path a line, in the order to load them. */
#define MODULE_LIST "/lib/pandastack/modules"

static volatile unsigned long long remembered;
static char block[4096] __attribute__((aligned(4096)));

static void load_modules(void) {
    char path[256];
    FILE *list = fopen(MODULE_LIST, "r");
    if (!list) printf("init: cannot open %s: %s\n", MODULE_LIST, strerror(errno));
    while (list && fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || syscall(SYS_finit_module, fd, "", 0)) printf("init: cannot load %s: %s\n", path, strerror(errno));
        close(fd);
    }
    if (list) fclose(list);
}

static int open_channel(void) {
    char path[300], name[64];
    for (;;) {
        DIR *ports = opendir("/sys/class/virtio-ports");
        struct dirent *entry;
        while (ports && (entry = readdir(ports))) {
            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
            FILE *file = fopen(path, "r");
            int found = file && fgets(name, sizeof name, file) && !strncmp(name, CHANNEL, strlen(CHANNEL));
            if (file) fclose(file);
            if (!found) continue;
            snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            int fd = open(path, O_RDWR | O_CLOEXEC);
            if (fd >= 0) return fd;
        }
        if (ports) closedir(ports);
        usleep(1000);
    }
}

static unsigned long long answer(const char *verb, unsigned long long number) {
    if (!strcmp(verb, "remember")) return remembered = number;
    if (!strcmp(verb, "recall")) return remembered;
    int on_volume = !strncmp(verb, "volume-", 7);
    int fd = open(on_volume ? "/dev/vdb" : "/dev/vda", O_RDWR | O_DIRECT | O_SYNC | O_CLOEXEC);
    if (on_volume) verb += 7;
    if (!strcmp(verb, "size")) {
        number = lseek(fd, 0, SEEK_END);
    } else if (!strcmp(verb, "write")) {
        memcpy(block, &number, sizeof number);
        if (pwrite(fd, block, sizeof block, 0) != sizeof block) number = 999000 + errno;
    } else {
        memset(block, 0xff, sizeof block);
        if (pread(fd, block, sizeof block, 0) != sizeof block) number = 999000 + errno;
        else memcpy(&number, block, sizeof number);
    }
    close(fd);
    return number;
}

int main(void) {
    mkdir("/dev", 0755), mkdir("/proc", 0755), mkdir("/sys", 0755);
    mount("dev", "/dev", "devtmpfs", 0, ""), mount("proc", "/proc", "proc", 0, ""), mount("sys", "/sys", "sysfs", 0, "");
    int console = open("/dev/console", O_WRONLY);
    if (console >= 0) dup2(console, 1), dup2(console, 2);
    setvbuf(stdout, 0, _IONBF, 0);
    load_modules();
    printf("init: ready\n");
    int channel = open_channel();
    char line[256], reply[64], verb[32];
    size_t filled = 0;
    for (;;) {
        char byte;
        /* Without a host connection reads return at once: try again. */
        if (read(channel, &byte, 1) != 1) { usleep(1000); continue; }
        if (byte != '\n') { if (filled < sizeof line - 1) line[filled++] = byte; continue; }
        line[filled] = 0, filled = 0;
        unsigned long long nonce, number = 0;
        if (sscanf(line, "%llu %31s %llu", &nonce, verb, &number) < 2) continue;
        int len = snprintf(reply, sizeof reply, "%llu %llu\n", nonce, answer(verb, number));
        if (write(channel, reply, len) != len) printf("init: cannot answer: %s\n", strerror(errno));
    }
}
