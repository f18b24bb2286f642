# For Yocto; the wheel of apache-tvm-ffi is a second source. REPOSITORY, COMMIT, VERSION and SHA256 are to be filled in.
SUMMARY = "Neural networks in a memory budget"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"
SRC_URI = "git://REPOSITORY;protocol=https;branch=main \
           https://files.pythonhosted.org/…/apache_tvm_ffi-VERSION-….whl;downloadfilename=tvm_ffi.zip;subdir=tvm_ffi;name=ffi"
SRCREV = "COMMIT"
SRC_URI[ffi.sha256sum] = "SHA256"
S = "${WORKDIR}/git"
OECMAKE_SOURCEPATH = "${S}/runtime_ext"
EXTRA_OECMAKE = "-DFLEXCOMP_TVM_FFI=${WORKDIR}/tvm_ffi/tvm_ffi"
inherit cmake
FILES:${PN} += "${libdir}/libtvm_ffi.so"
INSANE_SKIP:${PN} = "already-stripped dev-so"
