/* Looks a name up as programs of a distribution without glibc do, and connects.
 *
 *   lookup HOST PORT   prints the addresses, in order, and `open` when a connection to one came about;
 *                      `getaddrinfo: …` when there are none
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int main(int count, char **words)
{
	struct addrinfo *found, *it, hints;
	char text[INET6_ADDRSTRLEN];
	int is_open = 0, code;

	if (count != 3)
		return 2;
	memset(&hints, 0, sizeof hints);
	hints.ai_socktype = SOCK_STREAM;
	code = getaddrinfo(words[1], words[2], &hints, &found);
	if (code != 0) {
		printf("getaddrinfo: %s\n", gai_strerror(code));
		return 1;
	}
	for (it = found; it; it = it->ai_next) {
		void *address = it->ai_family == AF_INET
			? (void *)&((struct sockaddr_in *)it->ai_addr)->sin_addr
			: (void *)&((struct sockaddr_in6 *)it->ai_addr)->sin6_addr;
		struct timeval limit = { 3, 0 };
		int fd = socket(it->ai_family, SOCK_STREAM, 0);

		printf("%s\n", inet_ntop(it->ai_family, address, text, sizeof text));
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		if (!is_open && connect(fd, it->ai_addr, it->ai_addrlen) == 0)
			is_open = 1;
		close(fd);
	}
	if (is_open)
		puts("open");
	return !is_open;
}
