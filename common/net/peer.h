/* peer.h: whose process is at the other end of a TCP connection within this machine.
 *
 * The kernel is asked for that one socket (sock_diag). Both answer at once. */
#ifndef KUBEML_PEER_H
#define KUBEML_PEER_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the kernel tells of sockets at all, asked of one that listens: some sandboxes and
 * containers let nobody ask. */
bool peer_is_told(int listen_fd);
/* 1 with its user; 0: the other end is closed by now, and nobody's; -1: it could not be asked, for
 * want of descriptors or memory, and may be once more. */
int peer_user(int fd, uid_t *user);

#endif
