/* peer.h: the user of the process at the other end of a TCP connection within this machine.
 *
 * Asks the kernel for that one socket (sock_diag). Neither function blocks. */
#ifndef KUBEML_PEER_H
#define KUBEML_PEER_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the kernel reports sockets, tried with a listening socket: some sandboxes and containers
 * forbid the question. */
bool peer_is_told(int listen_fd);
/* 1 with the other end's user; 0: the other end is closed, and has no user; -1: descriptors or
 * memory are short, and a retry may help. */
int peer_user(int fd, uid_t *user);

#endif
