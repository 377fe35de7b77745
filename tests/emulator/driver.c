/* driver.c: the libcuda.so.1 of the emulated GPU, as far as the binaries look for it before they load the module. */
int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);

int cuInit(unsigned flags)
{
	(void)flags;
	return 0;
}

int cuDeviceGetCount(int *n)
{
	*n = 1;
	return 0;
}
